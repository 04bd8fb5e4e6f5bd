"""The gateway as the keeper runs it: a process on a listening socket that outlives it."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from gateway_scenes import DEADLINE_S, TOKEN, RawClient, make_backend, make_route

from retinue.channel.join import Join, write_join
from retinue.channel.messages import Membership
from retinue.gateway.link import GatewayLink

READERS = 100
RSS_BOUND_MIB = 150
"""Above the idle process; 100 answers of 100 MB are 10 GB."""

PEM = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
"""The gateway reads the token beside these, and none of them."""


class Node:
    """What a keeper holds: the listening socket, the node directory, and at most one gateway."""

    def __init__(self, directory: Path) -> None:
        self.listen = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.listen.getsockname()[1]
        self.control_path = str(directory / "gateway.sock")
        self.join = directory / "join.pem"
        record = Join(
            run_id="0" * 12, attempt=0, node="n1", addresses=(), run_dir="", attempt_dir="", node_dir=str(directory),
            start_dir="", python="", version="", ca_pem=PEM, cert_pem=PEM, key_pem=PEM, token=TOKEN,
        )  # fmt: skip
        write_join(self.join, record)
        self.log = directory / "gateway.log"
        self.gateway: subprocess.Popen[bytes] | None = None

    def start(self, beat_fd: int | None = None) -> subprocess.Popen[bytes]:
        number = self.listen.fileno()
        beat_words = [] if beat_fd is None else ["--beat-fd", str(beat_fd)]
        words = [*beat_words, "--listen-fd", str(number), "--control-path", self.control_path, "--join", str(self.join)]
        with self.log.open("ab") as log:
            self.gateway = subprocess.Popen(
                [sys.executable, "-P", "-m", "retinue", "gateway", *words],
                pass_fds=[number, *([] if beat_fd is None else [beat_fd])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.gateway

    def kill(self) -> None:
        if self.gateway is not None:
            self.gateway.kill()
            self.gateway.wait()


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory() as directory:
        made = Node(Path(directory))
        try:
            yield made
        finally:
            made.kill()
            made.listen.close()


@asynccontextmanager
async def serve_routes(node: Node, port: int) -> AsyncIterator[None]:
    """Be the agent: keep one membership published."""
    link = GatewayLink(node.control_path, "n1", lambda facts: None)
    link.publish(Membership(epoch=1, routes=(make_route(make_backend(port)),)))
    task = asyncio.create_task(link.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serve_ok() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def ask(node: Node) -> int:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", node.port))
    try:
        await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        return (await client.read_answer()).status
    finally:
        client.close()


async def test_a_client_that_connects_while_no_gateway_runs_is_answered_by_the_next_one(node: Node) -> None:
    async with serve_ok() as port, serve_routes(node, port):
        for _ in range(3):
            early = asyncio.create_task(ask(node))
            node.start()
            assert await early == 200
            assert await ask(node) == 200
            node.kill()


async def test_one_hundred_slow_readers_do_not_fill_the_gateways_memory(node: Node) -> None:
    stalled: asyncio.Queue[None] = asyncio.Queue()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
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
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(flood, "127.0.0.1", 0)
        stack.callback(server.close)
        await stack.enter_async_context(serve_routes(node, server.sockets[0].getsockname()[1]))
        gateway = node.start()
        readers = []
        for at in range(READERS):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
            stack.callback(writer.transport.abort)
            readers.append(reader)
            if at == 0:
                await asyncio.to_thread(wait_for_answer_of, node)
                before_mib = read_rss_mib(gateway.pid)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        async with asyncio.timeout(3 * DEADLINE_S):
            for _ in range(READERS):
                await stalled.get()
        assert read_rss_mib(gateway.pid) - before_mib < RSS_BOUND_MIB


def wait_for_answer_of(node: Node) -> None:
    """Ask the gateway itself, in a thread: it is up and warm then."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=DEADLINE_S) as client:
        client.sendall(b"GET /-/health HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"


def read_rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_told_gateway_ends_well_though_a_request_hangs(node: Node, number: signal.Signals) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        arrived.set()
        await reader.read()
        writer.transport.abort()

    arrived = asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with serve_routes(node, server.sockets[0].getsockname()[1]):
        gateway = node.start()
        _, writer = await asyncio.open_connection("127.0.0.1", node.port)
        writer.write(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
        gateway.send_signal(number)
        assert await asyncio.to_thread(gateway.wait, DEADLINE_S) == 0
        writer.transport.abort()
    server.close()


async def test_what_goes_wrong_is_one_line_without_token_or_body(node: Node) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(break_off, "127.0.0.1", 0)
    async with serve_routes(node, server.sockets[0].getsockname()[1]):
        node.start()
        for request in (
            b"POST /judge/ HTTP/1.1\r\nX-Retinue-Retry: never\r\nX-API-Key: %b\r\nContent-Length: 6\r\n\r\nprompt",
            b"GET /judge/\x01%b HTTP/1.1\r\nX-API-Key: %b\r\n\r\n",
        ):
            client = RawClient(*await asyncio.open_connection("127.0.0.1", node.port))
            await client.send(request.replace(b"%b", TOKEN.encode()))
            assert (await client.read_head()).status in (400, 409)
            client.close()
    server.close()
    node.kill()
    lines = node.log.read_text().splitlines()
    assert [line for line in lines if not line.startswith("retinue gateway: ")] == []
    assert len(lines) == 2
    assert not any(secret in line for line in lines for secret in (TOKEN, "prompt"))


def test_its_loop_beats_and_beats_that_nobody_reads_do_not_stop_it(node: Node) -> None:
    beat_fd, far_fd = os.pipe()
    os.set_blocking(far_fd, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(far_fd, bytes(4096))
    node.start(far_fd)
    os.close(far_fd)
    wait_for_answer_of(node)  # The pipe was full from the first beat on.
    unread = len(os.read(beat_fd, 1 << 20))
    assert unread == 65536
    for _ in range(2):
        assert select.select([beat_fd], [], [], DEADLINE_S)[0]
        assert os.read(beat_fd, 1 << 20) == b"."
    os.close(beat_fd)


def test_a_join_file_that_cannot_be_read_is_said_in_one_line(node: Node) -> None:
    node.join.write_text("not a record " + TOKEN)
    gateway = node.start()
    assert gateway.wait(DEADLINE_S) == 70
    (line,) = node.log.read_text().splitlines()
    assert line.startswith("retinue gateway: cannot start: ")
    assert TOKEN not in line


def test_the_link_costs_the_agent_no_http_library() -> None:
    code = (
        "import sys, retinue.gateway.link\n"
        "assert not [name for name in sys.modules if name.split('.')[0] in ('aiohttp', 'yarl', 'uvloop', 'multidict')]"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=DEADLINE_S)
