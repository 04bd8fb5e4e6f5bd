"""The clock and the timers of a real controller."""

import asyncio
import time
from collections.abc import Callable

from retinue.supervise.happenings import Happening


class RealClock:
    """Implements `edges.Clock`; the loop's time is CLOCK_MONOTONIC, so due times outlive this process."""

    def now_s(self) -> float:
        return time.monotonic()

    def now_utc(self) -> float:
        return time.time()


class RealTimers:
    """Implements `edges.Timers`."""

    def __init__(self, post: Callable[[Happening], None]) -> None:
        self._post = post
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, due_s: float, happening: Happening) -> None:
        self.cancel(name)
        self._handles[name] = asyncio.get_running_loop().call_at(due_s, self._fire, name, happening)

    def _fire(self, name: str, happening: Happening) -> None:
        self._handles.pop(name, None)
        self._post(happening)

    def cancel(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            handle.cancel()
