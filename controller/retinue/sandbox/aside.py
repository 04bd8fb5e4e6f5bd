"""Runs one blocking call in a thread of its own, and waits for it for a bounded time.

For calls that storage may never answer: the thread is then left behind and ends when the call does. It keeps neither
the loop nor the end of the process waiting, as a thread of an executor would.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from retinue.errors import RetinueError

T = TypeVar("T")
_SLICE_S = 1.0


async def run_aside(call: Callable[[], T], limit_s: float, on_late: Callable[[T], None] | None = None) -> T:
    """Give what `call` gives; it may raise OSError and RetinueError.

    Shape:  on_late gets a result that nobody waits for any more, for instance to close it.
    Errors: TimeoutError after limit_s of this process's own running time: a process that was stopped for a while
            does not blame the call for it.
    """
    loop = asyncio.get_running_loop()
    work = _Work(call, on_late, loop.create_future())
    threading.Thread(target=work.run, args=(loop,), name="aside", daemon=True).start()
    left_s = limit_s
    try:
        while left_s > 0 and not work.done.done():
            await asyncio.wait({work.done}, timeout=min(_SLICE_S, left_s))
            left_s -= _SLICE_S
    except asyncio.CancelledError:
        if work.give_up():
            work.drop()
        raise
    if not work.is_finished and not work.give_up():
        raise TimeoutError(f"no answer in {limit_s:g} s")
    return work.read_result()


class _Work(Generic[T]):
    def __init__(
        self, call: Callable[[], T], on_late: Callable[[T], None] | None, done: "asyncio.Future[None]"
    ) -> None:
        self._call = call
        self._on_late = on_late
        self._lock = threading.Lock()
        self._is_abandoned = False
        self._values: list[T] = []
        self._error: Exception | None = None
        self.is_finished = False
        self.done = done

    def run(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the thread."""
        try:
            self._values = [self._call()]
        except (OSError, RetinueError) as error:
            self._error = error
        finally:
            with self._lock:
                self.is_finished = True
                is_late = self._is_abandoned
            if is_late:
                self.drop()
            with contextlib.suppress(RuntimeError):  # The loop may have been closed meanwhile.
                loop.call_soon_threadsafe(self._tell)

    def give_up(self) -> bool:
        """Want the result no more; True when it is there all the same."""
        with self._lock:
            self._is_abandoned = True
            return self.is_finished

    def read_result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._values:
            raise RuntimeError("a call in a thread broke; its traceback was printed")
        return self._values[0]

    def drop(self) -> None:
        """Hand a result that nobody takes to on_late."""
        if self._on_late is not None and self._values:
            self._on_late(self._values.pop())

    def _tell(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
