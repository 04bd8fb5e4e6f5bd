"""A small server that does what a test's script says, byte by byte; used by the client's tests."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

DEADLINE_S = 20.0


@dataclass(eq=False)
class Asked:
    """One request as it arrived, and the pen for its answer."""

    number: int
    """0 for the first request of the server."""
    connection: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The checks of a batch."""
        rows: list[dict[str, Any]] = self.json["checks"]
        return rows

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int, value: Any, **headers: str) -> None:
        """Answer with JSON and its length."""
        body = json.dumps(value).encode()
        fields = {"Content-Length": str(len(body)), **{name.replace("_", "-"): text for name, text in headers.items()}}
        await self.write(build_head(status, fields) + body)

    async def open_stream(self) -> None:
        await self.write(build_head(200, {"Transfer-Encoding": "chunked", "Content-Type": "application/x-ndjson"}))

    async def send_row(self, index: int, **more: Any) -> None:
        line = json.dumps({"index": index, **scored(), **more}).encode() + b"\n"
        await self.write(b"%x\r\n%s\r\n" % (len(line), line))

    async def end_stream(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def stream_all(self) -> None:
        """Answer every row of the batch with its verifier's name as the reason."""
        await self.open_stream()
        for index, row in enumerate(self.rows):
            await self.send_row(index, reason=row["verifier"], rollout_id=row["rollout_id"])
        await self.end_stream()

    def cut(self) -> None:
        """Reset the connection."""
        self.writer.transport.abort()


def build_head(status: int, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def scored(score: float | None = 1.0, outcome: str = "scored", **more: Any) -> dict[str, Any]:
    return {"outcome": outcome, "score": score, "incarnation": "checks/0#1", **more}


Script = Callable[[Asked], Awaitable[None]]


@dataclass(eq=False)
class Server:
    """What arrived so far, and where."""

    script: Script
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    open: set[asyncio.StreamWriter] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        number, self.connections = self.connections, self.connections + 1
        self.open.add(writer)
        try:
            while True:
                asked = await self.read(reader, writer, number)
                self.asked.append(asked)
                await self.script(asked)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.open.discard(writer)
            self.tasks.discard(task)
            writer.transport.abort()

    async def read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> Asked:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, version = first.split(" ")
        assert version == "HTTP/1.1"
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        return Asked(len(self.asked), connection, method, path, headers, body, reader, writer)

    async def until_closed(self) -> None:
        """Wait until no client holds a connection."""
        await until(lambda: not self.open, "all connections closed")


@asynccontextmanager
async def serving(script: Script, unix: str | None = None, sock: Any = None) -> AsyncIterator[Server]:
    """Serve while the context lasts."""
    server = Server(script)
    if unix is not None:
        listening: asyncio.Server = await asyncio.start_unix_server(server.serve, unix)
        server.url = f"unix:{unix}"
    else:
        where: dict[str, Any] = {"sock": sock} if sock is not None else {"host": "127.0.0.1", "port": 0}
        listening = await asyncio.start_server(server.serve, **where)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        tasks = list(server.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The transports close their sockets in the loop's next turn.
        await asyncio.sleep(0)


@contextmanager
def serving_in_thread(script: Script) -> Iterator[Server]:
    """Serve from a loop in another thread, for callers that block this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = serving(script)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(DEADLINE_S)
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(DEADLINE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait, one turn of 5 ms at a time, until the condition holds; fail at the deadline."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < end_s, f"never came true: {what}"
        await asyncio.sleep(0.005)


def in_turn(*scripts: Script) -> Script:
    """Each request its own script; the last one stays."""

    async def script(asked: Asked) -> None:
        await scripts[min(asked.number, len(scripts) - 1)](asked)

    return script


async def answer_one(asked: Asked) -> None:
    """Score a single check; its verifier is the reason."""
    await asked.answer(200, scored(reason=asked.json["verifier"]))


async def answer_all(asked: Asked) -> None:
    """Score a batch, or a single check."""
    if asked.path.endswith("/v1/checks"):
        await asked.stream_all()
    else:
        await answer_one(asked)


async def hang(asked: Asked) -> None:
    """Never answer; ends when the client goes."""
    await asked.reader.read(1)
    raise ConnectionResetError


def busy(after: str = "0") -> Script:
    async def script(asked: Asked) -> None:
        await asked.answer(429, {"error": "full"}, Retry_After=after)

    return script


def typed(kind: str, status: int = 409) -> Script:
    """Answer as a gateway does for our side's fault."""

    async def script(asked: Asked) -> None:
        error = {"type": kind, "service": "checks", "since": None, "retryable": False, "message": "nothing is ready"}
        await asked.answer(status, {"error": error}, X_Retinue_Outcome="infra_failed", X_Should_Retry="false")

    return script
