"""A service and its port: taken by a stranger, refused by its server, chosen by itself, on another address."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service_scenes import build_server, end_cleanly, find_events, get, running

WAITS_FOR_A_WORD = """
while INCARNATION == 1 and not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""
CANNOT_SHARE = """
Server.allow_reuse_address = False
"""
ONLY_IPV6 = """
Server.address_family = socket.AF_INET6
serve(int(sys.argv[1]), "::1")
"""
CHOOSES = """
server = Server(("127.0.0.1", 0), Handler)
with open(os.environ["RETINUE_PORT_FILE"], "w") as file:
    file.write(f"{server.server_port}\\n")
server.serve_forever()  # not serve(...)
"""
SPEAKS_TCP = """
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    connection.sendall(f"{REPLICA} {INCARNATION}".encode())
    connection.close()
0 and serve(0)
"""
TCP = {"readiness": {"tcp": True, "period": "150ms"}}


class Stranger:
    """A server of somebody else who answers 200 on the port of a service that does not listen yet."""

    def __init__(self, port: int) -> None:
        self.asked = 0
        stranger = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stranger.asked += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> tuple[socket.socket, Any]:
                stranger.asked += 1
                request: tuple[socket.socket, Any] = super().get_request()
                return request

            def handle_error(self, request: object, client_address: object) -> None:
                """A probe that found out whose port this is hangs up; that is no news."""

        self.server = Server(("127.0.0.1", port), Handler)  # with SO_REUSEADDR, as the standard library does


@contextmanager
def stranger_on(port: int) -> Iterator[Stranger]:
    stranger = Stranger(port)
    thread = threading.Thread(target=stranger.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield stranger
    finally:
        stranger.server.shutdown()
        stranger.server.server_close()
        thread.join()


def test_a_strangers_200_is_not_readiness_and_the_next_launch_has_another_port(tmp_path: Path) -> None:
    word = tmp_path / "go"
    late = build_server(tmp_path, "late", WAITS_FOR_A_WORD, min_ready=0)
    late["command"].append(str(word))
    with running(tmp_path, {"late": late}) as run:
        port = run.wait("its port", lambda: run.replica("late/0").get("port"))
        with stranger_on(port) as stranger:
            run.wait("five questions", lambda: stranger.asked > 5)
            assert run.replica("late/0")["phase"] == "starting"
            word.touch()
            ready = run.wait_replica("late/0", "ready", incarnation=2)
            assert ready["port"] != port
            assert get(run.url("late")) == "late/0 2"
        changes = find_events(run, "late/0", "ReadinessChanged")
        assert len(changes) == 1
        died = find_events(run, "late/0", "Exited")[0]
        assert "Address already in use" in died["detail"]
        end_cleanly(run)


def test_servers_of_every_kind_become_ready_and_are_found(tmp_path: Path) -> None:
    twin = build_server(tmp_path, "twin")
    services = {
        "left": twin,
        "right": dict(twin),
        "rigid": build_server(tmp_path, "rigid", CANNOT_SHARE, port_reuse=False),
        "chooser": build_server(tmp_path, "chooser", CHOOSES),
        "plain": build_server(tmp_path, "plain", SPEAKS_TCP, protocol="tcp", probes=TCP, replicas=2),
        "six": build_server(tmp_path, "six", ONLY_IPV6),
    }
    services["chooser"]["command"].pop()
    with running(tmp_path, services) as run:
        for name in ("left", "right", "rigid", "chooser"):
            assert get(run.url(name)) == f"{name}/0 1"
        ports = [replica["port"] for replica in run.status()["replicas"]]
        assert len(set(ports)) == len(ports)
        check_tcp_service(run.endpoints()["services"]["plain"])
        assert get(f"http://[::1]:{run.replica('six/0')['port']}/") == "six/0 1"
        end_cleanly(run)


def check_tcp_service(endpoint: dict[str, Any]) -> None:
    assert (endpoint["url"], endpoint["ready"]) == (None, 2), json.dumps(endpoint)
    said = set()
    for address in endpoint["addresses"]:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10.0) as connection:
            said.add(connection.recv(100).decode())
    assert said == {"plain/0 1", "plain/1 1"}


def test_a_server_on_the_ipv6_loopback_only_is_reached_through_its_url(tmp_path: Path) -> None:
    with running(tmp_path, {"six": build_server(tmp_path, "six", ONLY_IPV6)}) as run:
        assert get(run.url("six"), timeout_s=3.0) == "six/0 1"
        end_cleanly(run)
