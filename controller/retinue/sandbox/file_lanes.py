"""Runs calls about files in threads: few at once, none for longer than it has, and none that hangs holds up another.

A call that is not done in time is told to stop and left behind; what it holds is closed when it ends, never before.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from retinue.sandbox.aside import run_aside
from retinue.sandbox.file_errors import FileFailed, FileRefused, Reason

T = TypeVar("T")
AT_ONCE = 8
"""Calls that may use the CPU at the same time; more would only take turns with the loop."""
HOLD_S = 1.0
"""What takes longer waits for something else than the CPU, and no longer counts among them."""
HANGING_MAX = 256
"""Threads in all, those that were left behind included; from here on calls are refused."""


class Stop:
    """Set when nobody waits for a call any more; the call looks at it as it goes."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Have the call end soon."""
        self._is_set = True

    def check(self) -> None:
        """End the call here, if it shall. Errors: FileRefused, which nobody hears."""
        if self._is_set:
            raise FileRefused(Reason.LATE, "nobody waits for it any more")


class Hold:
    """What one thread at a time works with; closed once, and never under the hands of that thread."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._is_used = False
        self._is_closed = False

    def use(self, call: Callable[[], T]) -> T:
        """Call, unless it is closed already. Errors: the call's; FileRefused LATE, which nobody hears."""
        with self._lock:
            if self._is_closed:
                raise FileRefused(Reason.LATE, "nobody waits for it any more")
            self._is_used = True
        try:
            return call()
        finally:
            with self._lock:
                self._is_used = False
                is_last = self._is_closed
            if is_last:
                self._close()

    def close(self) -> None:
        """Close it, or have its user do so when he is done."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            is_used = self._is_used
        if not is_used:
            self._close()


class Lanes:
    """The threads of one event loop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._count = 0
        """Threads that are in a call."""

    async def run(self, call: Callable[[Stop], T], limit_s: float) -> T:
        """Give what the call gives.

        Errors: the call's own; FileRefused LATE; FileFailed when no thread is to be had.
        """
        await self._wait_free(limit_s)
        freed = False

        def free() -> None:
            nonlocal freed
            if not freed:
                freed = True
                self._free.release()

        timer = asyncio.get_running_loop().call_later(HOLD_S, free)
        stop = Stop()
        try:
            if self._count >= HANGING_MAX:
                raise FileFailed(f"cannot use files: {self._count} calls hang in the kernel")
            return await run_aside(lambda: self._call(call, stop), limit_s)
        except TimeoutError:
            raise FileRefused(Reason.LATE, f"cannot finish within {limit_s:g} s") from None
        except RuntimeError as error:
            raise FileFailed(f"cannot use files: {error}") from None
        finally:
            stop.set()
            timer.cancel()
            free()

    async def _wait_free(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._free.acquire()
        except TimeoutError:
            raise FileFailed(f"cannot use files: no turn came within {limit_s:g} s") from None

    def _call(self, call: Callable[[Stop], T], stop: Stop) -> T:
        with self._lock:
            self._count += 1
        try:
            return call(stop)
        finally:
            with self._lock:
                self._count -= 1
