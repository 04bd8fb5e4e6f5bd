"""One TLS connection as messages in and messages out; both ends of the channel use it.

Never blocks its caller and never buffers without bound: a peer that does not take what it is
owed is disconnected.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from retinue.channel.context import Peer, parse_peer
from retinue.channel.frames import MAX_UNSENT_BYTES, FrameError, FrameReader, build_frame
from retinue.channel.messages import Message


class Wire(asyncio.Protocol):
    """The protocol object of one connection; `kind` is the union of messages its peer may send."""

    def __init__(
        self,
        kind: Any,
        on_open: Callable[["Wire"], None],
        on_message: Callable[["Wire", Any], None],
        on_end: Callable[["Wire", str], None],
    ) -> None:
        self._reader: FrameReader[Any] = FrameReader(kind)
        self._on_open = on_open
        self._on_message = on_message
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._reason = ""
        self.peer: Peer | None = None
        """Who the peer's certificate says it is; set before `on_open`."""
        self.peer_host = ""
        """The source address, as this end sees it."""

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent and will still be delivered."""
        return self._transport is not None and not self._transport.is_closing()

    def expect(self, kind: Any) -> None:
        """Name the messages this peer may send; called from `on_open`, before any byte is read."""
        self._reader = FrameReader(kind)

    def send(self, message: Message) -> bool:
        """Queue a message; False when the connection is gone or goes because it does not drain.

        Errors: FrameError when the message does not fit into a frame.
        """
        if self._transport is None or self._transport.is_closing():
            return False
        frame = build_frame(message)
        owed_bytes = self._transport.get_write_buffer_size() + len(frame)
        if owed_bytes > MAX_UNSENT_BYTES:
            self.abort(f"the peer does not drain: {owed_bytes} bytes unsent")
            return False
        self._transport.write(frame)
        return True

    def close(self, reason: str) -> None:
        """Send what is queued, then end; nothing more is delivered."""
        self._end_with(reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End now; nothing more is sent or delivered."""
        self._end_with(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end_with(self, reason: str) -> None:
        self._reason = self._reason or reason

    # --- asyncio's side ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A TLS transport is both halves, whichever loop made it; asyncio's types do not say so here.
        self._transport = cast(asyncio.Transport, transport)
        self.peer = parse_peer(transport.get_extra_info("peercert"))
        address = transport.get_extra_info("peername")
        self.peer_host = str(address[0]) if address else ""
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if not self.is_open:
            return
        try:
            messages = self._reader.feed(data)
        except FrameError as error:
            self.abort(str(error))
            return
        for message in messages:
            if not self.is_open:
                return
            self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_with(f"connection lost: {exc}" if exc else "closed by the peer")
        self._transport = None
        self._on_end(self, self._reason)
