"""What the gateway's tests share: a gateway in this loop, backends on port 0, and a client that speaks bytes."""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from retinue.channel.messages import Backend, Membership, Peer, Route
from retinue.gateway.desk import Desk, bind_control
from retinue.gateway.far import Hop
from retinue.gateway.hold import HELD_MAX, KEPT_BYTES_MAX
from retinue.gateway.main import open_gateway
from retinue.gateway.proxy import Proxy

DEADLINE_S = 20.0
TOKEN = "s3cret-token"

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
RawHandle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for a condition of this process, with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110 (a count in another object has no event)
            await asyncio.sleep(0.002)


@dataclass
class Answer:
    """One HTTP answer as it came off the wire."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    raw_head: bytes = b""


class RawClient:
    """A client that sends exactly these bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self) -> Answer:
        async with asyncio.timeout(DEADLINE_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), {name.lower(): value for name, value in headers.items()}, b"", head)

    async def read_answer(self) -> Answer:
        """Read one answer that states its length, or has none."""
        answer = await self.read_head()
        async with asyncio.timeout(DEADLINE_S):
            answer.body = await self.reader.readexactly(int(answer.headers.get("content-length", "0")))
        return answer

    async def read_chunk(self) -> bytes:
        """Read one chunk of a chunked body; empty at its proper end."""
        async with asyncio.timeout(DEADLINE_S):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        return data

    def close(self) -> None:
        self.writer.transport.abort()


@dataclass
class Scene:
    """A gateway that serves in this loop."""

    proxy: Proxy
    desk: Desk
    port: int
    control_path: str
    stack: AsyncExitStack
    epoch: int = 0
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self.stack.callback(client.close)
        return client

    async def ask(self, target: str, method: str = "GET", headers: str = "", body: bytes = b"") -> Answer:
        """Ask once on a connection of its own."""
        client = await self.connect()
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        await client.send(f"{method} {target} HTTP/1.1\r\nHost: gateway\r\n{length}{headers}\r\n".encode() + body)
        return await (client.read_head() if method == "HEAD" else client.read_answer())

    def start_asking(
        self, target: str, method: str = "GET", headers: str = "", body: bytes = b""
    ) -> "asyncio.Task[Answer]":
        task = asyncio.create_task(self.ask(target, method, headers, body))
        self.stack.push_async_callback(end_task, task)
        return task

    def publish(self, *routes: Route, peers: tuple[Peer, ...] = (), hidden: tuple[Backend, ...] = ()) -> None:
        """Apply a membership as if the agent had sent it."""
        self.epoch += 1
        assert self.proxy.table.apply(Membership(self.epoch, routes, peers, hidden), is_first=False)

    async def open_backend(self, handle: Handle) -> int:
        """Start an aiohttp backend; returns its port."""
        runner = web.ServerRunner(
            web.Server(handle, handler_cancellation=True, access_log=None, auto_decompress=False), shutdown_timeout=0.1
        )
        await runner.setup()
        self.stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    async def open_raw_backend(self, handle: RawHandle) -> int:
        """Start a backend that speaks bytes; each connection is aborted when its handler returns."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handle(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**20)
        self.stack.callback(server.close)
        return int(server.sockets[0].getsockname()[1])


async def end_task(task: "asyncio.Task[Answer]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def open_scene(
    own_uid: int | None = -1,
    held_max: int = HELD_MAX,
    kept_bytes_max: int = KEPT_BYTES_MAX,
    hop: Hop | None = None,
) -> AsyncIterator[Scene]:
    """Open a gateway on a port of its own; `own_uid` -1 is this process's."""
    uid = os.getuid() if own_uid == -1 else own_uid
    listen = socket.create_server(("127.0.0.1", 0))
    port = listen.getsockname()[1]
    async with AsyncExitStack() as outer:
        directory = outer.enter_context(tempfile.TemporaryDirectory())
        path = f"{directory}/node/gateway.sock"
        control = bind_control(path)
        gateway = open_gateway(listen, control, TOKEN, uid, held_max, kept_bytes_max, hop)
        proxy, desk = await outer.enter_async_context(gateway)
        async with AsyncExitStack() as stack:
            yield Scene(proxy, desk, port, path, stack)


def make_backend(port: int, replica: str = "judge/0", incarnation: int = 1, node: str = "n1") -> Backend:
    return Backend(replica=replica, incarnation=incarnation, node=node, host="127.0.0.1", port=port)


def make_route(*backends: Backend, hold_s: float = 60.0, is_per_node: bool = False, cause: str = "") -> Route:
    return Route(service="judge", backends=backends, hold_s=hold_s, is_per_node=is_per_node, cause=cause)


def find_closed_port() -> int:
    """Return a port on which nothing listens (bound once and released)."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
