"""A lean HTTP/1.1 client: one pool of connections per event loop, TCP and unix sockets.

Never asks a proxy, never follows a redirect, never leaves a connection in doubt:
what is not read to its end is closed, cancellation included. A connection that the
server ended while it was idle is replaced once, for requests that may be made twice;
the others get a fresh connection.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

from retinue.client.answer import HEAD_BYTES_MAX, Answer, Broken, read_answer
from retinue.errors import TransientError, UsageError

CONNECTIONS_MAX = 128
"""Per target and event loop: a gateway holds 1,000 requests, and 1,024 descriptors is a common soft limit."""
CONNECT_S = 10.0
"""A listener whose backlog is full does not answer."""
IDLE_S = 30.0
"""Idle connections older than this are closed; servers close theirs after 60 s and more."""
ONE_WRITE_BYTES = 64 * 1024
"""Up to here head and body are one write, so one segment where it fits."""


SEND_BYTES = 256 * 1024
"""Of a file at once."""


class Unreached(TransientError):
    """No connection: the server saw nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a service listens, and the path that its requests begin with."""

    url: str
    """As it was given, for messages."""
    host: str = ""
    port: int = 80
    unix_path: str = ""
    """Empty: TCP."""
    prefix: str = ""
    """`/checks`, without a trailing slash."""

    @property
    def authority(self) -> str:
        if self.unix_path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_target(url: str) -> Target:
    """Parse `http://HOST[:PORT][/PREFIX]` or `unix:PATH`.

    Errors: UsageError.
    """
    if url.startswith("unix:"):
        path = "/" + url.removeprefix("unix:").lstrip("/") if url.startswith("unix:/") else ""
        if len(path) < 2:
            raise UsageError(f"cannot use address {url!r}: unix: is followed by an absolute path")
        return Target(url, unix_path=path)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
    except ValueError as error:
        raise UsageError(f"cannot use address {url!r}: {error}") from None
    is_plain = parts.scheme == "http" and not (parts.query or parts.fragment or parts.username)
    if not (is_plain and host and _is_header_safe(parts.path)):
        raise UsageError(f"cannot use address {url!r}; write http://HOST:PORT/PREFIX or unix:/PATH")
    return Target(url, host, port, prefix=parts.path.rstrip("/"))


def build_head(method: str, target: Target, path: str, headers: Mapping[str, str], body_bytes: int) -> bytes:
    """Build request line and header fields.

    Errors: UsageError for a value that would be another header field.
    """
    fields = {"Host": target.authority, "Accept": "*/*", **headers, "Content-Length": str(body_bytes)}
    for name, value in fields.items():
        if not _is_header_safe(value):
            raise UsageError(f"cannot send header {name}: {value!r} is not printable ASCII")
    lines = [f"{method} {target.prefix}{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _is_header_safe(value: str) -> bool:
    return value.isascii() and (value.isprintable() or not value)


@dataclass(frozen=True, slots=True, eq=False)
class FileBody:
    """A body that is sent from a file, from its beginning each time."""

    file: BinaryIO
    size: int

    def __len__(self) -> int:
        return self.size


Body = bytes | FileBody


@dataclass(slots=True, eq=False)
class Connection:
    """One open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since_s: float = 0.0
    is_cut: bool = False
    """The server answered before it had the whole body: nothing can follow on it."""

    @property
    def is_usable(self) -> bool:
        return not (self.is_cut or self.writer.is_closing() or self.reader.at_eof() or self.reader.exception())

    async def exchange(self, head: bytes, body: Body) -> Answer:
        """Send one request and read the head of its answer; never waits for the body to be taken.

        A server that refuses early (413, 429) answers before it has read the body.
        Errors: Broken.
        """
        if isinstance(body, FileBody):
            return await self._exchange_file(head, body)
        if len(body) <= ONE_WRITE_BYTES:
            self.writer.write(head + body)
        else:
            self.writer.write(head)
            self.writer.write(body)
        return await read_answer(self.reader)

    async def _exchange_file(self, head: bytes, body: FileBody) -> Answer:
        self.writer.write(head)
        sending = asyncio.ensure_future(self._send_file(body))
        try:
            return await read_answer(self.reader)
        finally:
            self.is_cut = not sending.done()
            sending.cancel()
            await asyncio.wait([sending])

    async def _send_file(self, body: FileBody) -> None:
        """Send all of it, or end the connection: whoever reads the answer finds that out."""
        left = body.size
        try:
            await asyncio.to_thread(body.file.seek, 0)
            while left and (piece := await asyncio.to_thread(body.file.read, min(SEND_BYTES, left))):
                left -= len(piece)
                self.writer.write(piece)
                await self.writer.drain()
        except OSError:
            pass  # Of the socket or of the file; the body is short either way.
        if left:
            self.close()

    def close(self) -> None:
        """Close at once, unsent bytes included."""
        self.writer.transport.abort()


class Pool:
    """Connections of one event loop, by target."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self._connections_max = connections_max
        self._idle: dict[Target, list[Connection]] = {}
        self._slots: dict[tuple[Target, str], asyncio.Semaphore] = {}

    def find_slots(self, target: Target, lane: str, most: int) -> asyncio.Semaphore:
        """Return what bounds the connections of one lane: those in one never wait for those in another."""
        return self._slots.setdefault((target, lane), asyncio.Semaphore(most))

    @asynccontextmanager
    async def ask(
        self, target: Target, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[Answer]:
        """Send a request that may be made twice; the answer's body is read within the context.

        Errors: Unreached: the server saw nothing; Broken: it may have seen it.
        """
        async with (
            self.find_slots(target, "", self._connections_max),
            self.exchange(target, method, path, headers, body) as answer,
        ):
            yield answer

    @asynccontextmanager
    async def exchange(
        self,
        target: Target,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Body = b"",
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[Answer]:
        """Send a request; which lane it counts for is the caller's to see to.

        Shape:  `may_repeat` is asked before a connection that was idle is used, and again when that one broke.
        Errors: as `ask`.
        """
        head = build_head(method, target, path, headers, len(body))
        connection, answer = await self._send(target, head, body, may_repeat)
        try:
            yield answer
        finally:
            self._settle(target, connection, answer)

    async def close(self) -> None:
        """Close the idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        # One turn of the loop, in which the transports close their sockets.
        await asyncio.sleep(0)

    async def _send(
        self, target: Target, head: bytes, body: Body, may_repeat: Callable[[], bool]
    ) -> tuple[Connection, Answer]:
        idle = self._take_idle(target) if may_repeat() else None
        if idle is not None:
            try:
                return idle, await _exchange_or_close(idle, head, body)
            except Broken:
                if not may_repeat():
                    raise
                # Ended by the server while it was idle, as far as can be told: a fresh one decides.
        fresh = await connect(target)
        return fresh, await _exchange_or_close(fresh, head, body)

    def _take_idle(self, target: Target) -> Connection | None:
        connections = self._idle.get(target, [])
        oldest_s = asyncio.get_running_loop().time() - IDLE_S
        while connections:
            connection = connections.pop()
            if connection.is_usable and connection.idle_since_s >= oldest_s:
                return connection
            connection.close()
        return None

    def _settle(self, target: Target, connection: Connection, answer: Answer) -> None:
        if not (answer.is_reusable and connection.is_usable):
            connection.close()
            return
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.setdefault(target, []).append(connection)


async def connect(target: Target) -> Connection:
    """Open a connection.

    Errors: Unreached.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            if target.unix_path:
                streams = await asyncio.open_unix_connection(target.unix_path, limit=HEAD_BYTES_MAX)
            else:
                streams = await asyncio.open_connection(target.host, target.port, limit=HEAD_BYTES_MAX)
    except OSError as error:
        # Positive numbers are errno; a name that does not resolve has a negative one, several addresses have none.
        number = error.errno or 0
        raise Unreached(os.strerror(number).lower() if number > 0 else str(error) or "connect timed out") from None
    return Connection(*streams)


async def _exchange_or_close(connection: Connection, head: bytes, body: Body) -> Answer:
    is_answered = False
    try:
        answer = await connection.exchange(head, body)
        is_answered = True
        return answer
    finally:
        if not is_answered:
            connection.close()
