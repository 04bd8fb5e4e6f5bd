"""Try something in a process that is thrown away, for a bounded time.

Whatever the attempt mounts, starts or changes about itself is gone with that process and its namespaces. For a process
with one thread: it forks.
"""

import os
import select
import signal
import time
from collections.abc import Callable

from retinue.doctor.records import Trial
from retinue.node import kernel

LIMIT_S = 5.0
TOTAL_S = 30.0
"""For all trials of one look together; after it the rest is not tried."""
_DYING_S = 1.0
_ANSWER_BYTES = 2000

Attempt = Callable[[], str]
"""What runs in the child; its answer in words. An OSError is a refusal, with its own words."""


class StepRefused(OSError):
    """A step of a trial failed; says which."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(error.errno or 0, f"{step}: {error.strerror or error}")


class Trials:
    """Runs attempts one after the other."""

    def __init__(self, limit_s: float = LIMIT_S, total_s: float = TOTAL_S) -> None:
        self._limit_s = limit_s
        self._until_s = time.monotonic() + total_s

    def run(self, attempt: Attempt) -> Trial:
        """Run one attempt; a child that gives no answer in time is killed, with all it started."""
        left_s = min(self._limit_s, self._until_s - time.monotonic())
        if left_s <= 0:
            return Trial(False, "not tried: the probes before it took too long")
        return try_bounded(attempt, left_s)


def try_bounded(attempt: Attempt, limit_s: float = LIMIT_S) -> Trial:
    """Run an attempt in a fork and return what came of it."""
    read_fd, write_fd = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(read_fd)
        os.close(write_fd)
        return Trial(False, f"cannot fork: {error.strerror}")
    if pid == 0:
        _be_child(attempt, write_fd, parent)
    os.close(write_fd)
    try:
        return _read_answer(read_fd, limit_s)
    finally:
        os.close(read_fd)
        _end(pid)


def _be_child(attempt: Attempt, write_fd: int, parent: int) -> None:
    """Never returns, whatever the attempt does: there must not be two of the caller."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        kernel.set_death_signal(signal.SIGKILL)
        if os.getppid() == parent:
            _silence(write_fd)
            os.write(write_fd, _say(attempt)[:_ANSWER_BYTES])
            code = 0
    finally:
        os._exit(code)


def _silence(write_fd: int) -> None:
    """A program that is started here must not hold or write to what is the caller's."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        if fd != write_fd:
            os.dup2(null, fd)


def _say(attempt: Attempt) -> bytes:
    try:
        return b"+" + attempt().encode(errors="replace")
    except OSError as error:
        return b"-" + str(error.strerror or error).encode(errors="replace")


def _read_answer(read_fd: int, limit_s: float) -> Trial:
    poller = select.poll()
    poller.register(read_fd, select.POLLIN)
    if not poller.poll(limit_s * 1000):
        return Trial(False, f"no answer within {limit_s:.1f} s")
    text = os.read(read_fd, _ANSWER_BYTES).decode(errors="replace")
    if not text:
        return Trial(False, "the process that tried it was killed")
    return Trial(text[0] == "+", text[1:])


def _end(pid: int) -> None:
    """Kill the child and its session; one that hangs in the kernel is left to die when the kernel lets it."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # not yet a session, or over
    until_s = time.monotonic() + _DYING_S
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < until_s:
        time.sleep(0.002)
