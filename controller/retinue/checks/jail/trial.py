"""Try something in a process that is thrown away, and hear what came of it."""

import os
import select
import signal
from collections.abc import Callable

ANSWER_FD = 3
_TIMEOUT_S = 30.0
_ANSWER_BYTES = 4096


def try_apart(attempt: Callable[[], str], fork: Callable[[], int] = os.fork) -> str:
    """Run `attempt` in a fork and return its one line; an OSError there is returned as its words.

    The answer goes to ANSWER_FD, which the attempt must not close. It may fork on: whoever returns from it
    answers. A process that ends or hangs without an answer answers so.
    """
    read_fd, write_fd = os.pipe()
    try:
        pid = fork()
        if pid == 0:
            _answer(attempt, write_fd)
    except OSError as error:
        os.close(read_fd)
        return f"cannot fork: {error.strerror}"
    finally:
        os.close(write_fd)
    try:
        return _read_answer(read_fd) or "no answer: the trial ended or hung"
    finally:
        os.close(read_fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _answer(attempt: Callable[[], str], write_fd: int) -> None:
    """Never returns, whatever the attempt does: there must not be two of the caller."""
    try:
        if write_fd != ANSWER_FD:
            os.dup2(write_fd, ANSWER_FD, inheritable=False)
        os.write(ANSWER_FD, _say(attempt).encode()[:_ANSWER_BYTES])
    finally:
        os._exit(0)


def _say(attempt: Callable[[], str]) -> str:
    try:
        return attempt()
    except OSError as error:
        return str(error)


def _read_answer(read_fd: int) -> str:
    poller = select.poll()
    poller.register(read_fd, select.POLLIN)
    if not poller.poll(_TIMEOUT_S * 1000):
        return ""
    return os.read(read_fd, _ANSWER_BYTES).decode(errors="replace")
