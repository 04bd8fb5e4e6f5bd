"""Signals as bytes on a pipe, for select loops, and the reaping of children. Nothing runs in a handler.

Standard library only.
"""

import os
import signal
from collections.abc import Collection, Iterator


def catch_signals(numbers: Collection[int]) -> int:
    """Have these signals arrive on a pipe; returns its read end (non-blocking, CLOEXEC)."""
    read_fd, write_fd = os.pipe()
    for fd in (read_fd, write_fd):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, _do_nothing)
    # Whoever started us may have held them back until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    return read_fd


def read_signals(read_fd: int) -> frozenset[int]:
    """Say which signals came since the last call."""
    try:
        return frozenset(os.read(read_fd, 4096))
    except BlockingIOError:
        return frozenset()


def _do_nothing(*_: object) -> None:
    """A handler must be there, or the byte is not written."""


def reap_children() -> Iterator[tuple[int, int]]:
    """Reap every child that ended, adopted orphans too: (pid, status). Nobody else in the process may wait for any."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def describe_status(status: int) -> str:
    """Say how a process ended: `exit code 3`, `signal SIGKILL`."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {name_signal(-code)}"


def name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
