"""One stream socket between front and shard, many exchanges on it at once; both ends are made of this.

A stream of one exchange has a window of its own: who reads slowly is waited for by who writes to it, and by nobody
else. The end of the socket is the end of every exchange on it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from retinue.errors import TransientError
from retinue.sandbox.shard_wire import (
    WINDOW_BYTES,
    Answer,
    Ask,
    FrameKind,
    FrameReader,
    Happening,
    build_answer,
    build_ask,
    build_frame,
    parse_answer,
)
from retinue.terms.record import from_json, to_json


class ShardLost(TransientError):
    """The process at the other end is gone."""


class Exchange:
    """One ask, its answer, and a stream of bytes each way where there is one."""

    def __init__(self, peer: "Peer", number: int) -> None:
        self._peer = peer
        self.number = number
        self.answer: asyncio.Future[Answer] = peer.loop.create_future()
        """Front only."""
        self._chunks: deque[bytes] = deque()
        self._is_whole = False
        self._is_broken = False
        self._credit = WINDOW_BYTES
        self._changed: asyncio.Event | None = None
        """Made by the first who waits: most exchanges have no stream."""

    async def send(self, chunk: bytes) -> None:
        """Send a piece of our stream, as soon as the other end has room. Errors: ShardLost."""
        while self._credit <= 0:
            await self._wait()
        self._credit -= len(chunk)
        self._peer.write(FrameKind.CHUNK, self.number, chunk)

    def end(self) -> None:
        """Say that our stream is whole."""
        self._peer.write(FrameKind.END, self.number)

    def break_off(self) -> None:
        """Say that our stream will never be whole."""
        self._peer.write(FrameKind.BREAK, self.number)

    async def receive(self) -> bytes:
        """Take the next piece of the other end's stream; empty at its end. Errors: ShardLost."""
        while not self._chunks:
            if self._is_whole:
                return b""
            if self._is_broken:
                raise ShardLost("cannot read on: the stream broke off")
            await self._wait()
        chunk = self._chunks.popleft()
        self._peer.write(FrameKind.ACK, self.number, len(chunk).to_bytes(4, "little"))
        return chunk

    def reply(self, answer: Answer) -> None:
        """Answer; shard only."""
        self._peer.write(FrameKind.ANSWER, self.number, build_answer(answer))

    def take(self, kind: FrameKind, payload: bytes) -> None:
        """Take a frame of this exchange that came in."""
        if kind is FrameKind.ANSWER:
            if not self.answer.done():
                self.answer.set_result(parse_answer(payload))
        elif kind is FrameKind.CHUNK:
            self._chunks.append(payload)
        elif kind is FrameKind.END:
            self._is_whole = True
        elif kind is FrameKind.BREAK:
            self._is_broken = True
        elif kind is FrameKind.ACK:
            self._credit += int.from_bytes(payload, "little")
        self.wake()

    def wake(self) -> None:
        """Have whoever waits look again."""
        if self._changed is not None:
            self._changed.set()

    def lose(self) -> None:
        """The socket has ended."""
        if not self.answer.done():
            self.answer.set_exception(ShardLost("cannot hear from a shard: it is gone"))
            self.answer.exception()
        self.wake()

    async def _wait(self) -> None:
        if not self._peer.is_open:
            raise ShardLost("cannot go on with a stream: the process at the other end is gone")
        if self._changed is None:
            self._changed = asyncio.Event()
        self._changed.clear()
        await self._changed.wait()


class Peer(asyncio.Protocol):
    """One end of the socket."""

    def __init__(
        self,
        on_ask: Callable[[Exchange, bytes], None] | None = None,
        on_cancel: Callable[[int], None] = lambda number: None,
        on_event: Callable[[Happening], None] = lambda happening: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """on_ask and on_cancel: the shard's end; on_event: the front's. on_lost is called once, whoever hung up."""
        self.loop = asyncio.get_running_loop()
        self._on_ask = on_ask
        self._on_cancel = on_cancel
        self._on_event = on_event
        self._on_lost = on_lost
        self._reader = FrameReader()
        self._exchanges: dict[int, Exchange] = {}
        self._next = 0
        self._transport: asyncio.Transport | None = None
        self.heard_s = self.loop.time()
        """When something last came in; loop clock."""

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is of no common class.

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            exchange.lose()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        self.heard_s = self.loop.time()
        try:
            for kind, number, payload in self._reader.feed(data):
                self._obey(kind, number, payload)
        except ValueError:  # FrameError, or a record that is none.
            self.close()

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def open(self, ask: Ask, body: bytes = b"") -> Exchange:
        """Ask. Errors: ShardLost."""
        if self._transport is None:
            raise ShardLost("cannot ask a shard: it is gone")
        self._next = (self._next + 1) & 0xFFFFFFFF
        exchange = Exchange(self, self._next)
        self._exchanges[exchange.number] = exchange
        self.write(FrameKind.ASK, exchange.number, build_ask(ask, body))
        return exchange

    def forget(self, exchange: Exchange, is_cancelled: bool = False) -> None:
        """Be done with an exchange; is_cancelled: have the other end stop too."""
        if self._exchanges.pop(exchange.number, None) is not None and is_cancelled:
            self.write(FrameKind.CANCEL, exchange.number)

    async def ask(self, ask: Ask, body: bytes = b"") -> Answer:
        """Ask and wait for an answer without a stream. Errors: ShardLost."""
        exchange = self.open(ask, body)
        try:
            return await exchange.answer
        finally:
            self.forget(exchange, is_cancelled=not exchange.answer.done() or exchange.answer.cancelled())

    def tell(self, happening: Happening) -> None:
        """Tell something unasked."""
        self.write(FrameKind.EVENT, 0, to_json(happening))

    def write(self, kind: FrameKind, number: int, payload: bytes = b"") -> None:
        """Send a frame; nothing once the socket has ended."""
        if self._transport is not None:
            self._transport.write(build_frame(kind, number, payload))

    def _obey(self, kind: FrameKind, number: int, payload: bytes) -> None:
        if kind is FrameKind.EVENT:
            self._on_event(from_json(payload, Happening))
        elif kind is FrameKind.CANCEL:
            self._on_cancel(number)
        elif kind is FrameKind.ASK:
            if self._on_ask is not None:
                exchange = self._exchanges[number] = Exchange(self, number)
                self._on_ask(exchange, payload)
        elif (known := self._exchanges.get(number)) is not None:
            known.take(kind, payload)
