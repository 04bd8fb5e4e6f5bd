"""A time limit on loading a verifier: raised where it hangs, so that the line can be named.

Only for the warm parent, before it forks. What hangs inside a library written in C is not reached:
the host, which is told what is being loaded, ends the process a little later.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Overdue(BaseException):
    """It took too long. No `Exception`: a plugin's own `except` must not swallow it."""


@contextmanager
def limit_time(limit_s: float) -> Iterator[None]:
    """Raise Overdue in whatever runs inside for longer."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Overdue(f"it was not done after {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
