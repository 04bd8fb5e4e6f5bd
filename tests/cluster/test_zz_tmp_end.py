"""A service on one node answers at the stable URL of every other: over broken networks, and for nobody else."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster, wait_for
from support.slurm_run import SlurmRun

SERVER = """
import http.server, os, pathlib, socket, time
place = pathlib.Path('PLACE')
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.path == '/slow':
            (place / f'slow-{socket.gethostname()}').touch()
            while not (place / 'go').exists(): time.sleep(0.05)
        body = socket.gethostname().encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(('127.0.0.1', PORT), Handler).serve_forever()
"""
ASK = """
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open(sys.argv[1], timeout=100).read().decode())
"""
KNOCK = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
answer = b''
try:
    with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)) as line:
        line.sendall(b'GET / HTTP/1.1\\r\\nHost: g\\r\\nX-Retinue-Far-Replica: judge/0#1\\r\\n\\r\\n')
        answer = line.recv(100)
except ssl.SSLError as error:
    print('refused', error.reason)
print('answer', answer)
"""


def start(cluster: Cluster, on: tuple[str, ...], env: dict[str, str] | None = None) -> SlurmRun:
    """Run a judge with one replica on each of these nodes; the trainer is on node1."""
    place = cluster.scratch / "run"
    script = SERVER.replace("PLACE", str(place)).replace("{", "{{").replace("}", "}}").replace("PORT", "{port}")
    judge: dict[str, Any] = {
        "command": [sys.executable, "-c", script],
        "per_node": "others",
        "probes": {"readiness": {"http": "/", "period": "200ms"}},
        "stop": {"grace": "3s"},
    }
    run = SlurmRun(
        cluster,
        nodes={"first": {"count": 1}, "others": {"count": "rest"}},
        trainer={"on": "first"},
        services={"judge": judge},
    )
    count = 1 + len(on)
    return run.submit(f"-N{count}", f"-w{','.join(('node1', *on))}", env=env).wait_running()


def ask(run: SlurmRun, host: str, path: str = "/") -> str:
    """Ask the judge at the stable URL on this host; its answer is the host it runs on."""
    url = f"http://127.0.0.1:{run.node(host)['gateway_port']}/judge{path}"
    ran = run.cluster.run_on(host, [sys.executable, "-c", ASK, url], patience_s=120)
    assert ran.code == 0, ran.err
    return ran.out.strip()


def find_hop_port(run: SlurmRun, host: str) -> int:
    """The port on which this host's keeper listens on all addresses."""
    look = "import pathlib; print(''.join(pathlib.Path(f'/proc/net/{name}').read_text() for name in ('tcp', 'tcp6')))"
    table = run.cluster.run_on(host, [sys.executable, "-c", look]).out
    rows = [line.split() for line in table.splitlines() if " 0A " in line]
    uid = str(Path(run.place).stat().st_uid)
    ports = [
        int(row[1].rpartition(":")[2], 16) for row in rows if row[7] == uid and set(row[1].partition(":")[0]) == {"0"}
    ]
    assert len(ports) == 1, rows
    return ports[0]


def no_each_node_reaches_the_others_service_and_prefers_its_own(cluster: Cluster) -> None:
    run = start(cluster, ("node2", "node3"))
    assert {ask(run, "node1") for _ in range(4)} == {"node2", "node3"}
    assert {ask(run, "node2") for _ in range(3)} == {"node2"}
    assert run.end()["clean"] == "true"


def no_bholed_network_a_hostname_on_loopback_and_a_site_proxy_change_nothing(cluster: Cluster) -> None:
    cluster.blackhole("node2")
    cluster.loopback_name("node2")
    proxy = "http://10.77.0.99:3128"
    env = dict(os.environ) | {
        name: proxy for low in ("http_proxy", "https_proxy", "all_proxy") for name in (low, low.upper())
    }
    run = start(cluster, ("node2",), env)
    assert [ask(run, "node1") for _ in range(3)] == ["node2"] * 3
    assert run.end()["clean"] == "true"


def no_c_user_gets_no_word_in_at_a_hop_port(cluster: Cluster) -> None:
    run = start(cluster, ("node2",))
    port = find_hop_port(run, "node2")
    for host, address in (("login", "10.77.0.2"), ("node2", "127.0.0.1")):
        ran = cluster.run_on(host, [sys.executable, "-c", KNOCK, address, str(port)], user=cluster.other_user)
        assert (ran.code, ran.out.splitlines()[-1]) == (0, "answer b''"), (ran.out, ran.err)
    assert ask(run, "node1") == "node2"
    run.end()


@pytest.mark.parametrize("is_waiting", [True, False], ids=["waiting-for-its-answer", "just-sent"])
def test_a_request_to_a_node_that_loses_its_power_is_answered_by_another(cluster: Cluster, is_waiting: bool) -> None:
    run = start(cluster, ("node2", "node3"))
    assert {ask(run, "node1") for _ in range(4)} == {"node2", "node3"}
    with ThreadPoolExecutor(4) as callers:
        if is_waiting:
            asked = [callers.submit(ask, run, "node1", "/slow") for _ in range(2)]
            marks = [run.place / f"slow-node{number}" for number in (2, 3)]
            wait_for("both to be asked", lambda: all(mark.exists() for mark in marks))
        cluster.kill_node("node3")
        if not is_waiting:
            # Nobody has noticed yet: half of these go out on connections to a host that is gone.
            asked = [callers.submit(ask, run, "node1") for _ in range(4)]
        (run.place / "go").touch()
        assert {each.result() for each in asked} == {"node2"}
    cluster.call("scancel", "--batch", "--signal=TERM", run.job)
    try:
        run.wait_verdict(60.0)
    except Exception:
        print("OUTPUT", run.output()[-1500:])
        for event in run.events()[-25:]: print("EV", event)
        print("STATUS", {k: v for k, v in run.status().items() if k in ("phase", "ending", "trainer", "nodes")})
        for host in ("node1", "node2"):
            print(host, cluster.run_on(host, ["ps", "-U", "rltest", "-o", "pid,ppid,stat,etimes,args"]).out[-2500:])
        for path in sorted(run.run_dir.rglob("*.log")): print(path, path.read_text()[-800:])
        print(cluster.run_on("node1", ["sh", "-c", "tail -n 20 /tmp/retinue-*/controller/controller.log; tail -5 /tmp/retinue-*/*.log"]).out)
        raise
