"""The way to replicas of the own node: keep-alive connections, and no more than that.

A request whose body is kept goes out in one write, over aiohttp's own connection class and its parser in C, without
aiohttp's session around it, which costs more than all the rest of a request. A streamed body goes by the session.
Never sends twice, and never decides whose fault something was but for a connect that failed.
"""

import asyncio
import errno
import socket
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDictProxy

from retinue.channel.messages import Backend
from retinue.gateway.exchange import Outgoing
from retinue.gateway.faults import Blame, Fault, translate_connect_error
from retinue.gateway.upstream import HEADER_BYTES, IDLE_S, LOOPBACK, READ_BYTES, build_authority, build_url, open_direct
from retinue.terms.calls import CallRules

BODILESS = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
"""Methods for which no body means nothing; of others its length 0 is said."""
NO_OTHER_FAMILY = frozenset((errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH))
"""connect() to ::1 where there is none, or nobody: what 127.0.0.1 said counts."""


class Upstream(Protocol):
    """An answer of a replica whose head is here."""

    @property
    def status(self) -> int: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def headers(self) -> CIMultiDictProxy[str]: ...

    @property
    def content(self) -> aiohttp.StreamReader: ...

    def close(self) -> None:
        """End the exchange; called once, whatever came of it."""


class Direct:
    """Asks replicas of the own node."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self._loop = asyncio.get_running_loop()
        self._idle: dict[tuple[str, int], deque[_Idle]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def send(self, backend: Backend, outgoing: Outgoing, rules: CallRules) -> Upstream:
        """Send one request to a replica; returns when the head of its answer is here.

        Errors: Fault when there was no connection, or no HTTP; whatever else aiohttp raises; ValueError for what no
                request may hold.
        """
        if outgoing.body.is_streamed:
            return await self._send_streamed(backend, outgoing, rules)
        request = build_request(backend, outgoing)
        line = self._take(backend)
        if line is None:
            line = await self._connect(backend, rules.connect_timeout_s)
        answer = None
        try:
            line.set_response_params(
                skip_payload=outgoing.method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                read_timeout=rules.read_timeout_s,
                read_bufsize=READ_BYTES,
                max_line_size=HEADER_BYTES,
                max_field_size=HEADER_BYTES,
            )
            if line.transport is None:
                raise aiohttp.ServerDisconnectedError
            line.transport.write(request)
            line.start_timeout()
            answer = await self._read_head(backend, line)
            return answer
        finally:
            if answer is None:
                # Not `close`: it would wait until a replica that hangs has read the rest.
                line.abort()

    async def close(self) -> None:
        """Close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for lines in self._idle.values():
            for idle in lines:
                idle.line.close()
        self._idle.clear()

    def keep(self, backend: Backend, line: ResponseHandler) -> None:
        """Keep a connection for the next request, if it can carry one."""
        # What is still unsent of a body that was answered before it was read would be taken for the next request.
        if line.should_close or not line.is_connected() or _has_unsent(line):
            line.abort()
            return
        self._idle.setdefault((backend.host, backend.port), deque()).append(_Idle(line, self._loop.time() + IDLE_S))
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S, self._close_old)

    async def _read_head(self, backend: Backend, line: ResponseHandler) -> "_Answer":
        while True:
            try:
                message, content = await line.read()
            except HttpProcessingError as error:
                raise Fault(Blame.GARBLED, f"unreadable exchange ({type(error).__name__})") from None
            # RFC 9110, 15.2: an interim answer is followed by another, but for a change of protocol.
            if not 100 <= message.code <= 199 or message.code == 101:
                return _Answer(message.code, message.reason, message.headers, content, backend, line, self)

    def _take(self, backend: Backend) -> ResponseHandler | None:
        lines = self._idle.get((backend.host, backend.port))
        while lines:
            # The youngest: the others may grow old and be closed.
            line = lines.pop().line
            if line.is_connected() and not line.should_close:
                return line
            line.close()
        return None

    async def _connect(self, backend: Backend, connect_s: float) -> ResponseHandler:
        """Connect; on loopback both address families are tried: a server may listen on either."""
        failed: OSError | None = None
        for host in LOOPBACK if backend.host in LOOPBACK else (backend.host,):
            try:
                async with asyncio.timeout(connect_s):
                    _, line = await self._loop.create_connection(
                        lambda: ResponseHandler(self._loop), host, backend.port, flags=socket.AI_NUMERICHOST
                    )
                return line
            except OSError as error:
                if failed is None or error.errno not in NO_OTHER_FAMILY:
                    failed = error
                if isinstance(error, TimeoutError):
                    break
        raise translate_connect_error(failed or OSError(errno.EADDRNOTAVAIL, "no address"))

    def _close_old(self) -> None:
        self._sweep = None
        now_s = self._loop.time()
        for address, lines in list(self._idle.items()):
            while lines and lines[0].until_s <= now_s:
                lines.popleft().line.close()
            if not lines:
                del self._idle[address]
        if self._idle:
            self._sweep = self._loop.call_later(IDLE_S / 4, self._close_old)

    async def _send_streamed(self, backend: Backend, outgoing: Outgoing, rules: CallRules) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=rules.connect_timeout_s, sock_read=rules.read_timeout_s
        )
        return await self.session.request(
            outgoing.method,
            build_url(backend, outgoing.target),
            headers=[*outgoing.headers, ("Host", build_authority(backend))],
            data=outgoing.body.payload(),
            allow_redirects=False,
            timeout=timeout,
        )


def _has_unsent(line: ResponseHandler) -> bool:
    return line.transport is not None and line.transport.get_write_buffer_size() > 0


@dataclass(slots=True)
class _Idle:
    line: ResponseHandler
    until_s: float


@dataclass(slots=True)
class _Answer:
    status: int
    reason: str | None
    headers: CIMultiDictProxy[str]
    content: aiohttp.StreamReader
    _backend: Backend
    _line: ResponseHandler
    _direct: Direct

    def close(self) -> None:
        self._direct.keep(self._backend, self._line)


def build_request(backend: Backend, outgoing: Outgoing) -> bytes:
    """Build a request whose body is here, as it goes over the wire.

    Errors: ValueError for a line break or a null in it, which would be another header, or another request.
    Source: RFC 9112, 3 and 5.
    """
    body = outgoing.body.payload() or b""
    if not isinstance(body, bytes):
        raise TypeError("a streamed body is not here")
    lines = [f"{outgoing.method} {outgoing.target} HTTP/1.1", f"Host: {build_authority(backend)}"]
    lines.extend([f"{name}: {value}" for name, value in outgoing.headers])
    if body or outgoing.method not in BODILESS:
        lines.append(f"Content-Length: {len(body)}")
    text = "\r\n".join(lines)
    if text.count("\r") + text.count("\n") != 2 * (len(lines) - 1) or "\0" in text:
        raise ValueError("a line break or a null in what was to be sent")
    return b"".join((text.encode("utf-8", "surrogateescape"), b"\r\n\r\n", body))


@asynccontextmanager
async def open_way() -> AsyncIterator[Direct]:
    """Open the way to replicas of the own node while the context lasts."""
    async with open_direct() as session:
        direct = Direct(session)
        try:
            yield direct
        finally:
            await direct.close()
