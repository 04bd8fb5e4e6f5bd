"""Receives a stream ahead of the thread that works on it, so that each turn of the thread is worth its price."""

import asyncio
from collections.abc import Awaitable, Callable

ENOUGH_BYTES = 64 * 1024
"""Worth a turn."""
AHEAD_BYTES = 512 * 1024
"""More is not asked for until some of it was taken."""


class Inlet:
    """The next pieces of one stream. Whoever made it closes it."""

    def __init__(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        """`receive` gives the next piece, empty at the end."""
        self._receive = receive
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_ready = asyncio.Event()
        self._is_wanted = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._fill())
        self._task.add_done_callback(lambda task: self._is_ready.set())

    async def take(self) -> tuple[bytes, bool]:
        """Wait for enough, or for the end; gives what is there, and whether that is all. Errors: those of `receive`."""
        await self._is_ready.wait()
        is_over = self._task.done()
        if is_over:
            self._task.result()
        else:
            self._is_ready.clear()
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._is_wanted.set()
        return data, is_over

    async def close(self) -> None:
        """Receive no more."""
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # Who failed for another reason has said so.

    async def _fill(self) -> None:
        while piece := await self._receive():
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size >= ENOUGH_BYTES:
                self._is_ready.set()
            while self._size >= AHEAD_BYTES:
                self._is_wanted.clear()
                await self._is_wanted.wait()
