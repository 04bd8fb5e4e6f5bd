"""Work that may hang in the kernel, on threads that nobody joins.

Reading /proc/PID/environ of a process in uninterruptible sleep can block, and so can
any file on a dead mount. Each piece of work has a daemon thread of its own: one that
never returns costs a thread, never the loop, the other work, or the process's end.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

from retinue.errors import TransientError

P = ParamSpec("P")
T = TypeVar("T")

LIMIT_S = 10.0
THREADS_MAX = 256
"""More than this many at once are stuck ones; new work is refused then."""


class Threads:
    """Runs blocking work beside the loop."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run it and wait, at most LIMIT_S.

        Errors: TransientError when it does not come back in time; whatever OSError the work raises.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._count >= THREADS_MAX:
                raise TransientError(f"cannot look: {self._count} earlier looks never came back")
            self._count += 1

        def body() -> None:
            settle: Callable[[], None]
            try:
                settle = partial(_give, done, work(*args, **kwargs))
            except OSError as error:
                settle = partial(_fail, done, error)
            finally:
                with self._lock:
                    self._count -= 1
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle)

        threading.Thread(target=body, daemon=True).start()
        try:
            async with asyncio.timeout(LIMIT_S):
                return await done
        except TimeoutError:
            if done.done() and not done.cancelled():
                raise  # the work's own
            raise TransientError(f"no answer in {LIMIT_S:g} s") from None


def _give(done: "asyncio.Future[T]", outcome: T) -> None:
    if not done.done():
        done.set_result(outcome)


def _fail(done: "asyncio.Future[T]", error: OSError) -> None:
    if not done.done():
        done.set_exception(error)
