"""The door of a TLS listener: accepts, shakes hands, hands over. Strangers wait here and cost little.

At most `limit` connections are in a handshake; the kernel's queue holds the rest. When all places
are taken for a second, the oldest gives way: an honest handshake takes milliseconds.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from retinue.channel.context import HANDSHAKE_TIMEOUT_S, tune_socket


class Admission:
    """Accepts on a listening socket that somebody else made."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        build_protocol: Callable[[], asyncio.BaseProtocol],
        limit: int = 64,
        handshake_s: float = HANDSHAKE_TIMEOUT_S,
        tune: Callable[[socket.socket], None] = tune_socket,
    ) -> None:
        self._listener = listener
        self._context = context
        self._build_protocol = build_protocol
        self._limit = limit
        self._handshake_s = handshake_s
        self._tune = tune
        self._patience_s = 1.0
        self._pending: dict[asyncio.Task[None], float] = {}
        self.refused_count = 0
        """Connections that did not get through the handshake."""
        self.last_refusal = ""

    @property
    def pending_count(self) -> int:
        """How many connections are in a handshake now."""
        return len(self._pending)

    async def run(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        # The flag is shared with the stub's copy of the socket, which the stub never reads from.
        self._listener.setblocking(False)
        try:
            while True:
                await self._wait_for_place()
                await self._accept(loop)
        finally:
            await self._drop_all()

    async def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            sock, _ = await loop.sock_accept(self._listener)
        except OSError as error:
            # Out of descriptors, or a peer that left the queue: the next accept may work.
            self._note_refusal(f"cannot accept: {error.strerror}")
            await asyncio.sleep(0.1)
            return
        task = loop.create_task(self._shake_hands(loop, sock))
        self._pending[task] = loop.time()
        task.add_done_callback(self._pending.pop)

    async def _shake_hands(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        try:
            self._tune(sock)
            await loop.connect_accepted_socket(
                self._build_protocol,
                sock,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
                ssl_shutdown_timeout=2.0,
            )
        except OSError as error:
            self._note_refusal(f"no handshake: {error}")
        except asyncio.CancelledError:
            self._note_refusal("no handshake in time while others waited")
            raise

    async def _wait_for_place(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._pending) >= self._limit:
            oldest, since_s = next(iter(self._pending.items()))
            patience_s = since_s + self._patience_s - loop.time()
            if patience_s <= 0:
                oldest.cancel()
                await asyncio.wait([oldest])
            else:
                await asyncio.wait(self._pending, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)

    async def _drop_all(self) -> None:
        # One turn of the loop: a task that never ran would not close its socket.
        await asyncio.sleep(0)
        pending = list(self._pending)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    def _note_refusal(self, reason: str) -> None:
        self.refused_count += 1
        self.last_refusal = reason
