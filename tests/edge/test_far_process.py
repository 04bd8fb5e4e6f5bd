"""Gateways of two nodes as processes: killed, stopped and flooded while requests hop between them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from channel_scenes import RUN, authority, certificate
from far_scenes import until
from gateway_scenes import DEADLINE_S, Answer, RawClient, RawHandle, make_backend, make_route

from retinue.channel.join import Join, write_join
from retinue.channel.messages import Backend, GatewayFacts, Membership, Peer
from retinue.gateway.link import GatewayLink

READERS = 100
RSS_BOUND_MIB = 150
"""Above the idle process; 100 answers of 100 MB are 10 GB."""


class Node:
    """What a keeper holds: both listening sockets, the node directory, and at most one gateway."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        self.name = name
        self.listen = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.hop = socket.create_server((address, 0), backlog=1024)
        self.port = self.listen.getsockname()[1]
        self.control_path = str(directory / f"{name}.sock")
        self.join = directory / f"{name}.pem"
        cert_pem, key_pem = certificate("agent", name)
        record = Join(
            run_id=RUN, attempt=0, node=name, addresses=(), run_dir="", attempt_dir="", node_dir=str(directory),
            start_dir="", python="", version="", token="t",
            ca_pem=authority().ca_pem, cert_pem=cert_pem, key_pem=key_pem,
        )  # fmt: skip
        write_join(self.join, record)
        self.link = GatewayLink(self.control_path, name, self._take)
        self.facts = GatewayFacts()
        self.gateway: subprocess.Popen[bytes] | None = None

    @property
    def peer(self) -> Peer:
        address, port = self.hop.getsockname()
        return Peer(self.name, (address,), port)

    def start(self) -> None:
        fds = [self.listen.fileno(), self.hop.fileno()]
        words = ["--listen-fd", str(fds[0]), "--hop-fd", str(fds[1]), "--control-path", self.control_path]
        self.gateway = subprocess.Popen(
            [sys.executable, "-P", "-m", "retinue", "gateway", *words, "--join", str(self.join)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
        )

    def send(self, number: signal.Signals) -> None:
        assert self.gateway is not None
        self.gateway.send_signal(number)

    def kill(self) -> None:
        if self.gateway is not None:
            self.gateway.kill()
            self.gateway.wait()

    def close(self) -> None:
        self.kill()
        self.listen.close()
        self.hop.close()

    def _take(self, facts: GatewayFacts) -> None:
        self.facts = facts

    async def connect(self) -> RawClient:
        return RawClient(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))

    async def ask(self, headers: bytes = b"") -> Answer:
        client = await self.connect()
        try:
            await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n" + headers + b"\r\n")
            return await client.read_answer()
        finally:
            client.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    made = [Node(f"n{number}", f"127.0.1.{number}", tmp_path) for number in (1, 2, 3)]
    try:
        yield made
    finally:
        for node in made:
            node.close()


@asynccontextmanager
async def serve_routes(nodes: list[Node], *backends: Backend) -> AsyncIterator[None]:
    """Be the agents: keep one membership published at every node."""
    for node in nodes:
        peers = tuple(other.peer for other in nodes if other is not node)
        node.link.publish(Membership(1, (make_route(*backends),), peers))
    tasks = [asyncio.create_task(node.link.run()) for node in nodes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_replica(handle: RawHandle, replica: str, node: Node) -> AsyncIterator[Backend]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield make_backend(server.sockets[0].getsockname()[1], replica, node=node.name)
    finally:
        server.close()


def say(text: bytes) -> RawHandle:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))

    return handle


async def test_a_request_in_flight_at_a_gateway_that_is_killed_is_sent_to_another_nodes_replica(
    nodes: list[Node],
) -> None:
    arrived = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()

    async with AsyncExitStack() as stack:
        hanging = await stack.enter_async_context(open_replica(hang, "judge/0", nodes[1]))
        other = await stack.enter_async_context(open_replica(say(b"other"), "judge/1", nodes[2]))
        await stack.enter_async_context(serve_routes(nodes, hanging, other))
        for node in nodes:
            node.start()
        asked = asyncio.create_task(nodes[0].ask())
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
        nodes[1].kill()
        assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"other"


async def test_the_next_gateway_on_the_same_hop_socket_is_used_without_an_error(nodes: list[Node]) -> None:
    async with AsyncExitStack() as stack:
        near, far = nodes[:2]
        replica = await stack.enter_async_context(open_replica(say(b"ok"), "judge/0", far))
        await stack.enter_async_context(serve_routes([near, far], replica))
        near.start()
        for _ in range(3):
            far.start()
            assert (await near.ask()).body == b"ok"
            far.kill()
            asked = asyncio.create_task(near.ask())
            far.start()
            assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"ok"
            far.kill()
        await until(lambda: near.facts.requests == 6)
        assert near.facts.failed == 0


async def test_a_new_request_waits_for_a_gateway_that_is_busy_and_leaves_one_that_hangs_when_its_keeper_ends_it(
    nodes: list[Node],
) -> None:
    async with AsyncExitStack() as stack:
        near, stopped, far = nodes
        first = await stack.enter_async_context(open_replica(say(b"first"), "judge/0", stopped))
        other = await stack.enter_async_context(open_replica(say(b"other"), "judge/1", far))
        await stack.enter_async_context(serve_routes(nodes, first, other))
        for node in nodes:
            node.start()
        assert {(await near.ask()).body for _ in range(2)} == {b"first", b"other"}
        stopped.send(signal.SIGSTOP)
        asked = [asyncio.create_task(near.ask()) for _ in range(2)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        stopped.send(signal.SIGCONT)
        assert {(await task).body for task in asked} == {b"first", b"other"}
        stopped.send(signal.SIGSTOP)
        asked = [asyncio.create_task(near.ask()) for _ in range(2)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        stopped.kill()
        assert {(await task).body for task in asked} == {b"other"}


async def test_one_hundred_slow_readers_fill_neither_gateways_memory(nodes: list[Node]) -> None:
    stalled: asyncio.Queue[None] = asyncio.Queue()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 100_000)
            try:
                async with asyncio.timeout(1.0):
                    await writer.drain()
            except TimeoutError:
                # Everything between here and the reader is full.
                stalled.put_nowait(None)
                await reader.read()
                return

    near, far = nodes[:2]
    async with AsyncExitStack() as stack:
        replica = await stack.enter_async_context(open_replica(flood, "judge/0", far))
        await stack.enter_async_context(serve_routes([near, far], replica))
        near.start()
        far.start()
        before: list[float] = []
        for at in range(READERS):
            client = await near.connect()
            stack.callback(client.close)
            await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
            if at == 0:
                await client.read_head()
                before = [read_rss_mib(node) for node in (near, far)]
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(4 * DEADLINE_S):
            for _ in range(READERS):
                await stalled.get()
        grown = [read_rss_mib(node) - then for node, then in zip((near, far), before, strict=True)]
        assert max(grown) < RSS_BOUND_MIB, grown


def read_rss_mib(node: Node) -> float:
    assert node.gateway is not None
    pages = int(Path(f"/proc/{node.gateway.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20
