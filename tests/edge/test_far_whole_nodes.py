"""Two whole nodes on one machine: real keepers, agents and gateways, with the channel's own server in front."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import channel_scenes as scenes
from agent_doubles import wait_for
from gateway_scenes import Answer, RawClient
from test_keeper_roles import pick_port

from retinue import __version__
from retinue.channel.join import write_join
from retinue.channel.messages import (
    Backend,
    BindGateway,
    GatewayBound,
    Hello,
    LaunchOrder,
    Membership,
    Peer,
    Report,
    Route,
)
from retinue.channel.server import ChannelServer
from retinue.node.addresses import list_addresses
from retinue.terms.launch import LaunchSpec, ProbeKind, ProbeSpec
from retinue.terms.record import replace
from retinue.terms.replica import ReadinessChanged, Started

T = TypeVar("T")
SERVICE = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        words = os.getpid(), self.headers['X-Forwarded-Prefix'], self.headers['X-Retinue-Far-Replica']
        body = ' '.join(map(str, words)).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(('127.0.0.1', {port}), Handler).serve_forever()
"""


class Nodes:
    """The controller's side of both nodes."""

    def __init__(self, server: ChannelServer, desk: scenes.Desk) -> None:
        self.server = server
        self.desk = desk

    async def hello(self, node: str, number: int = 1) -> Hello:
        def find() -> Hello | None:
            hellos = [hello for hello in self.desk.hellos if hello.node == node]
            return hellos[number - 1] if len(hellos) >= number and node in self.server.connected else None

        return await wait_for(find, f"hello {number} of {node}")

    async def hear(self, node: str, pick: Callable[[object], T | None]) -> T:
        def find() -> T | None:
            picked = (pick(message) for name, message in self.desk.messages if name == node)
            return next((found for found in picked if found is not None), None)

        return await wait_for(find, f"word of {node}")

    async def bind(self, node: str, port: int) -> int:
        assert self.server.send(node, BindGateway(port))
        bound = await self.hear(node, lambda said: said if isinstance(said, GatewayBound) else None)
        assert bound.is_bound
        assert bound.hop_port is not None
        return bound.hop_port

    async def event(self, node: str, kind: type[T]) -> T:
        def pick(said: object) -> T | None:
            return said.event if isinstance(said, Report) and isinstance(said.event, kind) else None

        return await self.hear(node, pick)


@contextlib.asynccontextmanager
async def open_node(where: Path, run_id: str, name: str, listener: socket.socket) -> AsyncIterator[None]:
    join = replace(
        scenes.build_join(listener, name, run_id=run_id, signer=run_id),
        run_dir=str(where),
        attempt_dir=str(where / "attempt-0"),
        node_dir=str(where / name),
        start_dir=str(where),
        python=sys.executable,
        version=__version__,
        node_count=2,
    )
    write_join(where / f"{name}.pem", join)
    argv = [sys.executable, "-P", "-m", "retinue", "node", str(where / f"{name}.pem")]
    outer = await asyncio.to_thread(subprocess.Popen, argv, stdout=subprocess.DEVNULL, cwd=where)
    try:
        yield
    finally:
        outer.send_signal(signal.SIGTERM)
        await wait_for(lambda: outer.poll() is not None, "end of the outer process")


@contextlib.asynccontextmanager
async def open_nodes(where: Path) -> AsyncIterator[Nodes]:
    (where / "attempt-0").mkdir()
    (where / "attempt-0" / "nonce").write_text(scenes.NONCE + "\n")
    run_id = secrets.token_hex(6)
    cert_pem, key_pem = scenes.certificate("controller", "controller", run_id)
    changes = {"run_id": run_id, "ca_pem": scenes.authority(run_id).ca_pem, "cert_pem": cert_pem, "key_pem": key_pem}
    with scenes.bind_listener() as listener:
        desk = scenes.Desk()
        async with (
            scenes.serving(listener, desk, version=__version__, **changes) as server,
            open_node(where, run_id, "n1", listener),
            open_node(where, run_id, "n2", listener),
        ):
            yield Nodes(server, desk)


async def ask(port: int) -> Answer:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    try:
        await client.send(b"GET /svc/ HTTP/1.1\r\nHost: g\r\n\r\n")
        return await client.read_answer()
    finally:
        client.close()


async def test_a_service_on_one_node_answers_at_the_stable_url_of_another_whoever_dies_meanwhile(
    tmp_path: Path,
) -> None:
    async with open_nodes(tmp_path) as nodes:
        port = pick_port()
        hello = await nodes.hello("n1")
        far_hello = await nodes.hello("n2")
        assert hello.addresses == far_hello.addresses == list_addresses()
        await nodes.bind("n1", port)
        hop_port = await nodes.bind("n2", pick_port())
        probe = ProbeSpec(ProbeKind.READINESS, tcp=True, period_s=0.1, timeout_s=5.0)
        log_path = str(tmp_path / "attempt-0" / "svc.log")
        argv = (sys.executable, "-S", "-c", SERVICE)
        spec = LaunchSpec("svc/0", "svc", 0, 1, argv, wants_port=True, probes=(probe,), log_path=log_path)
        assert nodes.server.send("n2", LaunchOrder(spec))
        started = await nodes.event("n2", Started)
        await nodes.event("n2", ReadinessChanged)
        assert started.port is not None
        routes = (Route("svc", (Backend("svc/0", 1, "n2", "127.0.0.1", started.port),)),)
        membership = Membership(1, routes, (Peer("n2", ("127.0.0.1",), hop_port),))
        assert nodes.server.send("n1", membership)
        assert nodes.server.send("n2", Membership(1, routes))
        said = (await ask(port)).body.decode()
        assert said == f"{started.pid} /svc None"
        # The next agent of n2 says the same hop port; the gateways need neither agent nor controller.
        os.kill(far_hello.host_pid, signal.SIGKILL)
        assert (await ask(port)).body.decode() == said
        assert (await nodes.hello("n2", 2)).hop_port == hop_port
        assert (await ask(port)).body.decode() == said
