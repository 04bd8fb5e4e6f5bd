"""Two runs of one user and one of another on the same nodes at once: nothing is shared, and nobody reaches the others.

Whoever tries is a real other uid of the cluster (or the same user with the other run's keys), on loopback and over
the network.
"""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from support.cluster import Cluster, wait_for
from support.cluster_clean import assert_nothing_left
from support.slurm_run import SMALL, SlurmRun, server_service

NODE, FAR = "node2", "node3"
SERVICES = {"web": server_service(per_node="all")}

CALL = """
import sys, urllib.request, urllib.error
url, token = sys.argv[1], sys.argv[2]
request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
try:
    print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
SHAKE = """
import json, socket, ssl, sys, os
host, port, name, keys = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if keys.endswith(".pem"):
    context.load_cert_chain(keys)
elif keys:
    said = json.load(open(keys))
    fd = os.memfd_create("keys")
    os.write(fd, (said["cert_pem"] + said["key_pem"]).encode())
    context.load_cert_chain(f"/proc/self/fd/{fd}")
sock = socket.create_connection((host, port), timeout=10)
try:
    line = context.wrap_socket(sock, server_hostname=name)
    line.sendall(b"GET /-/far HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    print("answered" if line.recv(100) else "closed")
except (ssl.SSLError, ConnectionError) as error:
    print("refused", error)
"""


@dataclass
class Scene:
    cluster: Cluster
    one: SlurmRun
    two: SlurmRun
    """The same user's."""
    theirs: dict[str, Any]
    """status.json of the other user's run."""

    def run_py(self, host: str, code: str, *words: object, user: str | None = None) -> str:
        ran = self.cluster.run_on(host, [sys.executable, "-I", "-c", code, *map(str, words)], user)
        assert ran.code == 0, ran.err
        return ran.out.strip()

    def read_secret(self, run: SlurmRun, name: str) -> str:
        return (run.run_dir / name).read_text()


def submit_theirs(cluster: Cluster) -> dict[str, Any]:
    """Start the other user's run from their own home, and wait until it is complete."""
    other, env = cluster.other_user, {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": os.environ["PATH"]}
    manifest = json.dumps({"retinue": 1, "run": {"name": "theirs"}, "services": SERVICES})  # JSON is YAML.
    command = f"{sys.executable} -P -m retinue run --run-dir ~/theirs run.yaml -- sleep 300"
    write = f"printf '%s' '{manifest}' >run.yaml; printf '#!/bin/bash\\nexec {command}\\n' >job.sh"
    script = f"cd; rm -rf theirs; {write}; sbatch -N4 {' '.join(SMALL)} -o out.txt job.sh"
    ran = cluster.run_on("login", ["bash", "-c", script], other, env)
    assert ran.code == 0, ran.err

    def read() -> dict[str, Any] | None:
        ran = cluster.run_on("login", ["bash", "-c", "cat ~/theirs/current/status.json"], other)
        status: dict[str, Any] = json.loads(ran.out) if ran.code == 0 else {}
        return status if status.get("phase") == "running" and status["services"][0]["ready"] == 4 else None

    found: dict[str, Any] = wait_for("the other user's run to be complete", read)
    return found


@pytest.fixture(scope="module")
def scene(module_cluster: Cluster) -> Scene:
    runs = [SlurmRun(module_cluster, name, services=SERVICES).submit("-N4", *SMALL) for name in ("one", "two")]
    theirs = submit_theirs(module_cluster)
    return Scene(module_cluster, runs[0].wait_running(), runs[1].wait_running(), theirs)


def test_no_port_file_name_or_token_is_shared(scene: Scene) -> None:
    said = [scene.one.status(), scene.two.status(), scene.theirs]
    assert len({status["run_id"] for status in said}) == 3
    assert len({status["gateway_port"] for status in said}) == 3
    for node in scene.cluster.nodes:
        ports = [item["port"] for status in said for item in status["replicas"] if item["node"] == node]
        assert len(set(ports)) == 3
        tops = scene.cluster.run_on(node, ["ls", "/tmp"]).out.split()
        assert {f"retinue-{os.getuid()}-{status['run_id']}" for status in said[:2]} <= set(tops)
    assert scene.read_secret(scene.one, "token") != scene.read_secret(scene.two, "token")
    assert scene.read_secret(scene.one, "control.json") != scene.read_secret(scene.two, "control.json")


def test_another_user_can_read_nothing(scene: Scene) -> None:
    cluster, run_dir = scene.cluster, scene.one.run_dir
    for path in (run_dir, run_dir / "join"):
        assert path.stat().st_mode & 0o777 == 0o700, path
    for path in (run_dir / "token", run_dir / "control.json", *(run_dir / "join").iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600, path
    run_id, agent = scene.one.status()["run_id"], scene.one.node(NODE)["agent_host_pid"]
    node_dir = f"/tmp/retinue-{os.getuid()}-{run_id}"
    for path in (f"{node_dir}/.", f"{node_dir}/join.pem", f"/proc/{agent}/environ", f"{run_dir}/."):
        assert cluster.run_on(NODE, ["cat", path], cluster.other_user).err.count("Permission denied") == 1, path
        assert "Permission denied" not in cluster.run_on(NODE, ["cat", path]).err, path


def test_another_user_cannot_call_and_a_token_opens_its_own_run_only(scene: Scene) -> None:
    url = f"http://127.0.0.1:{scene.one.status()['gateway_port']}/web/"
    other, own, wrong = (
        scene.cluster.other_user,
        scene.read_secret(scene.one, "token"),
        scene.read_secret(scene.two, "token"),
    )
    assert scene.run_py(NODE, CALL, url, "") == "200"
    assert scene.run_py(NODE, CALL, url, "", user=other) == "403"
    assert scene.run_py(NODE, CALL, url, wrong, user=other) == "403"
    assert scene.run_py(NODE, CALL, url, own, user=other) == "200"
    theirs = f"http://127.0.0.1:{scene.theirs['gateway_port']}/web/"
    assert scene.run_py(NODE, CALL, theirs, "") == "403"


@pytest.mark.parametrize("host", ["node1", FAR])
def test_nobody_joins_commands_or_hops_without_this_runs_keys(scene: Scene, host: str) -> None:
    control = json.loads(scene.read_secret(scene.one, "control.json"))
    keys = scene.two.run_dir / "control.json"
    (port,) = {port for _, port in control["addresses"]}
    hop = find_hop(scene)
    for target, name in ((("node1", port), f"retinue-{control['run_id']}"), ((NODE, hop), NODE)):
        assert scene.run_py(host, SHAKE, *target, name, "", user=scene.cluster.other_user) != "answered"
        assert scene.run_py(host, SHAKE, *target, name, keys) != "answered"
    # With keys of this run both doors do answer: the shake itself is sound.
    assert scene.run_py(host, SHAKE, NODE, hop, NODE, scene.one.run_dir / "join" / f"{host}.pem") == "answered"
    restart = [sys.executable, "-P", "-m", "retinue", "restart", "web/0", "--run", str(scene.one.run_dir)]
    assert scene.cluster.run_on(host, restart, env=ENV).code == 0
    assert scene.cluster.run_on(host, restart, scene.cluster.other_user, ENV).code != 0


ENV = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": os.environ["PATH"]}


def find_hop(scene: Scene) -> int:
    """The run's port for other nodes' gateways on NODE: of its listeners, the one that is not on loopback."""
    listeners = scene.cluster.run_on(NODE, ["ss", "-Htlnp"]).out.splitlines()
    (gateway,) = scene.one.find_role(NODE, "gateway")
    rows = [line.split() for line in listeners if f"pid={gateway}," in line]
    (port,) = {int(row[3].rpartition(":")[2]) for row in rows if not row[3].startswith("127.")}
    return port


def test_a_sweep_ends_a_dead_run_and_leaves_the_living_ones_alone(scene: Scene) -> None:
    cluster, dead = scene.cluster, "0123456789ab"
    before = set(cluster.processes(NODE))
    env = {**ENV, "RETINUE_RUN_ID": dead, "RETINUE_RUN_DIR": str(cluster.scratch / "dead")}
    left = f"mkdir -m 700 /tmp/retinue-{os.getuid()}-{dead}; setsid sleep 300 >/dev/null 2>&1 & echo $!"
    pid = int(cluster.run_on(NODE, ["bash", "-c", left], env=env).out)
    assert pid in cluster.processes(NODE)
    swept = cluster.run_on(NODE, [sys.executable, "-P", "-m", "retinue", "sweep"], env=ENV)
    assert swept.code == 0, swept.err
    for run in (scene.one, scene.two):
        assert f"run {run.status()['run_id']}: left alone" in swept.out, swept.out
    assert set(cluster.processes(NODE)) == before
    assert f"retinue-{os.getuid()}-{dead}" not in cluster.run_on(NODE, ["ls", "/tmp"]).out


def test_one_run_ends_and_the_others_do_not_notice(scene: Scene) -> None:
    cluster = scene.cluster
    verdict = scene.one.end()
    assert verdict["clean"] == "true", verdict
    assert scene.two.status()["phase"] == "running"
    assert len(cluster.processes(NODE, cluster.other_user)) > 3
    assert scene.two.end()["clean"] == "true"
    their_scancel = cluster.run_on(
        "login", ["scancel", "--batch", "--signal=TERM", "--user", cluster.other_user], cluster.other_user
    )
    assert their_scancel.code == 0, their_scancel.err
    wait_for("the other user's job to end", lambda: not cluster.call("squeue", "-h"))
    assert_nothing_left(cluster, scene.two.run_dir)
