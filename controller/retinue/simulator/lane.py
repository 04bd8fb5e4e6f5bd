"""Whose message is next: a bounded number under way, the rest wait in one bounded queue, callers in turn."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from retinue.serving.queue import FairQueue

RETRY_MIN_S, RETRY_MAX_S = 1, 60
MEAN_SHARE = 0.05
"""Of the last message in the mean time of all."""


class Full(Exception):
    """The queue is full; come again in so many seconds."""

    def __init__(self, queued: int, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"cannot take more: the queue is full ({queued} wait)")


@dataclass(slots=True, eq=False)
class _Waiting:
    """One request that waits; hashed by identity."""

    turn: asyncio.Future[None]


class Lane:
    """Who runs and who waits."""

    def __init__(self, workers: int, queue: int, queue_bytes: int) -> None:
        self.running = 0
        self.refused = 0
        self.mean_s = 0.0
        self._workers = workers
        self._queue: FairQueue[_Waiting] = FairQueue(queue, queue_bytes)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def check_room(self, weight_bytes: int) -> None:
        """Errors: Full when so much cannot wait now; counted."""
        if not self._queue.has_room(1, weight_bytes):
            self.refused += 1
            wait_s = self.queued * self.mean_s / self._workers
            raise Full(self.queued, min(RETRY_MAX_S, max(RETRY_MIN_S, math.ceil(wait_s))))

    @asynccontextmanager
    async def enter(self, caller: str, weight_bytes: int) -> AsyncIterator[None]:
        """Wait for the turn, and have it while the context lasts. Errors: Full, at once."""
        loop = asyncio.get_running_loop()
        if self.running >= self._workers:
            await self._wait(caller, weight_bytes)
        else:
            self.running += 1
        began_s = loop.time()
        try:
            yield
        finally:
            self.mean_s += MEAN_SHARE * (loop.time() - began_s - self.mean_s)
            self._leave()

    async def _wait(self, caller: str, weight_bytes: int) -> None:
        self.check_room(weight_bytes)
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        self._queue.put(caller, waiting, weight_bytes)
        try:
            await waiting.turn
        except asyncio.CancelledError:
            # Its turn may have come in the same step in which its caller went.
            if not self._queue.remove(caller, waiting) and waiting.turn.done() and not waiting.turn.cancelled():
                self._leave()
            raise

    def _leave(self) -> None:
        """Hand the place on, or give it back."""
        while (waiting := self._queue.pop()) is not None:
            if not waiting.turn.done():
                waiting.turn.set_result(None)
                return
        self.running -= 1
