"""The body of one request: kept for replay when it is small, streamed through when it is not.

Never holds more than `REPLAY_BYTES` of one request, nor more than the gateway's budget of all.
"""

import socket
from collections.abc import AsyncIterator

from aiohttp import web

from retinue.gateway.hold import ReplayBudget
from retinue.gateway.wire import Refusal

REPLAY_BYTES = 1024 * 1024
"""Longer bodies are streamed and cannot be sent a second time."""

TCP_ESTABLISHED = 1
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class NoBody:
    """The body of a question of our own."""

    is_streamed = False

    def payload(self) -> None:
        """Return what to send."""


class RequestBody:
    """What the client sends, as often as it may be sent on."""

    def __init__(self, request: web.BaseRequest, budget: ReplayBudget, service: str, kept_max: int) -> None:
        """`kept_max`: bytes that may be kept of all requests of the service."""
        self._request = request
        self._budget = budget
        self._service = service
        self._kept_max = kept_max
        self._kept = b""
        self._taken_bytes = 0
        self._is_streamed = False
        self._is_started = False
        self._wants_continue = False
        self.is_broken = False
        """The client's own body broke off while it was streamed: not the backend's fault."""
        self.is_over_budget = False
        """Too much is kept already; this one is streamed, and not held."""

    @property
    def is_streamed(self) -> bool:
        """True when the body is not kept: it can be sent once."""
        return self._is_streamed

    @property
    def can_send(self) -> bool:
        """True while the request can be sent, for the first time or again."""
        return not (self._is_streamed and self._is_started)

    @property
    def kept(self) -> bytes:
        """What is kept of it: all, unless it is streamed."""
        return b"" if self._is_streamed else self._kept

    @property
    def length(self) -> int | None:
        """Length to announce for a streamed body; None: chunked."""
        return self._request.content_length

    async def load(self) -> None:
        """Read a small body whole; leave a long one, or one that finds the budget spent, where it is.

        Errors: Refusal 400 when the client's body breaks off, 417 for an expectation that is not known.
        """
        self._wants_continue = _check_expectation(self._request)
        if not self._request.body_exists:
            return
        size = self._request.content_length
        if size is not None and size > REPLAY_BYTES:
            self._is_streamed = True
            return
        wanted = REPLAY_BYTES if size is None else size
        if not self._budget.take(self._service, wanted, self._kept_max):
            self._is_streamed = self.is_over_budget = True
            return
        self._taken_bytes = wanted
        await self._keep()

    def leave(self) -> None:
        """Leave the body where it is, whatever its length: it is asked for only when a backend takes it.

        Errors: Refusal 417 for an expectation that is not known.
        """
        self._wants_continue = _check_expectation(self._request)
        self._is_streamed = self._request.body_exists

    def payload(self) -> bytes | AsyncIterator[bytes] | None:
        """Return what to send now."""
        if self._is_streamed:
            return self._stream()
        return self._kept or None

    def close(self) -> None:
        """Give back what was reserved."""
        self._budget.give(self._service, self._taken_bytes)
        self._taken_bytes = 0
        self._kept = b""

    async def _keep(self) -> None:
        self._say_continue()
        parts: list[bytes] = []
        count = 0
        content = self._request.content
        try:
            while count <= REPLAY_BYTES and (part := await content.readany()):
                parts.append(part)
                count += len(part)
        except (web.RequestPayloadError, ConnectionError):
            raise Refusal.bad_request("cannot read the request's body: it broke off or is not framed as HTTP") from None
        self._kept = b"".join(parts)
        if count > REPLAY_BYTES:
            # A chunked body says its length only by ending; what was read goes out first.
            self._is_streamed = True
        else:
            self._budget.give(self._service, self._taken_bytes - count)
            self._taken_bytes = count

    async def _stream(self) -> AsyncIterator[bytes]:
        # Runs only once a connection stands: a refused connect leaves the body untouched.
        self._is_started = True
        self._say_continue()
        if self._kept:
            yield self._kept
            self.close()
        try:
            async for part in self._request.content.iter_any():
                yield part
        except (web.RequestPayloadError, ConnectionError):
            self.is_broken = True
            raise

    def _say_continue(self) -> None:
        transport = self._request.transport
        if self._wants_continue and transport is not None:
            transport.write(CONTINUE)
        self._wants_continue = False


def _check_expectation(request: web.BaseRequest) -> bool:
    expectation = request.headers.get("Expect", "").lower()
    if expectation in ("", "100-continue"):
        return bool(expectation) and request.version >= (1, 1)
    raise Refusal(417, "retinue_bad_request", f"cannot meet the expectation {expectation[:50]!r}")


def check_connected(request: web.BaseRequest) -> None:
    """Raise ConnectionResetError when the client closed its side, whatever it sent before."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError
    client = transport.get_extra_info("socket")
    # tcp_info begins with the state, linux/tcp.h; CLOSE_WAIT is the client's FIN behind unread bytes.
    if client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != TCP_ESTABLISHED:
        transport.abort()
        raise ConnectionResetError
