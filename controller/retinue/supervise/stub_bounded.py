"""Do in a forked child what may never return: a full or hung file system, another process's memory.

The caller waits a bounded time and goes on. Standard library only.
"""

import json
import os
import select
import time
from collections.abc import Callable
from typing import Any

from retinue.node import scan

STDERR = 2


class Bounded:
    """What one act answered."""

    __slots__ = ("pid", "problem", "value")

    def __init__(self, pid: int, value: Any, problem: str) -> None:
        self.pid = pid
        """The child; it may still hang in the kernel when `problem` says that time ran out."""
        self.value = value
        self.problem = problem
        """Why there is no value; empty when there is."""


def run_bounded(act: Callable[[], Any], limit_s: float, is_vital: bool = False) -> Bounded:
    """Run the act in a child of our own and wait for its answer.

    Shape:  the value crosses a pipe as JSON. The child is not reaped here (that could block as well). A vital act is
            done in this process where no child is to be had, however long it takes.
    Errors: none; whatever goes wrong is `problem`.
    """
    ends: tuple[int, ...] = ()
    try:
        near, far = ends = os.pipe()
        pid = os.fork()
    except OSError as error:
        for fd in ends:
            os.close(fd)
        return _act_here(act) if is_vital else Bounded(0, None, f"cannot fork: {error.strerror}")
    if pid == 0:
        _answer(act, far)
    os.close(far)
    data, is_late = _read_all(near, time.monotonic() + limit_s)
    os.close(near)
    if is_late:
        # With what it started: a command of Slurm tries for a minute and more, in a session of its own.
        scan.kill_pids({pid, *scan.find_descendants(scan.read_processes(), [pid])})
        return Bounded(pid, None, f"no answer within {limit_s:g} s")
    try:
        answer = json.loads(data)
    except ValueError:
        return Bounded(pid, None, "the child ended without an answer")
    return Bounded(pid, answer.get("value"), answer.get("problem", ""))


def _act_here(act: Callable[[], Any]) -> Bounded:
    """Do it without a child: that the user's processes are at their limit is no reason to leave something behind."""
    try:
        return Bounded(0, act(), "")
    except OSError as error:
        return Bounded(0, None, str(error))


def _answer(act: Callable[[], Any], far: int) -> None:
    """Be the child: never returns, and holds nothing whose end somebody waits for (the stop pipe's above all)."""
    try:
        os.closerange(STDERR + 1, far)
        os.closerange(far + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            answer = {"value": act()}
        except OSError as error:
            answer = {"problem": str(error)}
        data = json.dumps(answer).encode()
        while data:
            data = data[os.write(far, data) :]
    finally:
        os._exit(0)


def _read_all(near: int, deadline_s: float) -> tuple[bytes, bool]:
    poll = select.poll()
    poll.register(near, select.POLLIN)
    data = b""
    while True:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return data, True
        piece = os.read(near, 1 << 16)
        if not piece:
            return data, False
        data += piece
