"""Children that are dead but for the kernel: a thread of theirs is in a file system that hangs, so they are not reaped.

They run no code any more, so whoever waits for their end goes on without it, and they are named at the run's end.
Standard library only.
"""

import signal
import time

from retinue.node import scan
from retinue.supervise.stub_children import Child

CONTROLLER_LIMIT_S = 0.5
"""From its death, seen or ordered, to its reaping; a second one beside it is harmless, a wait is not."""
KILL_LIMIT_S = 5.0
"""A trainer with much memory takes a while to die."""
HUNG_LIMIT_S = 1.0
"""The same where the run directory is known to hang."""


class Hung:
    """What is known to hang."""

    def __init__(self) -> None:
        self.is_dir_hung = False
        """What a controller said last of the run directory."""
        self.pids: set[int] = set()
        """Children that were given up and are not reaped yet."""
        self._doomed_s: dict[int, float] = {}

    @property
    def is_any_doomed(self) -> bool:
        """Whether some child may be given up soon."""
        return bool(self._doomed_s)

    def is_due(self, child: Child, is_controller: bool) -> bool:
        """Say whether to give this child up now; True once.

        A controller whose first thread is on its way out is killed to be sure: it is ours, and none of its threads
        goes on alone. A trainer may be made so.
        """
        if not child.is_alive:
            return False
        if is_controller and not child.is_killed and _is_exiting(child.pid):
            child.send_signal(signal.SIGKILL)
        if not child.is_killed:
            return False
        limit_s = CONTROLLER_LIMIT_S if is_controller else HUNG_LIMIT_S if self.is_dir_hung else KILL_LIMIT_S
        now_s = time.monotonic()
        if now_s - self._doomed_s.setdefault(child.pid, now_s) < limit_s:
            return False
        del self._doomed_s[child.pid]
        self.pids.add(child.pid)
        child.is_hung = True
        return True

    def take_exit(self, pid: int) -> bool:
        """Note that a child was reaped after all; False when it was none that was given up."""
        is_known = pid in self.pids
        self._doomed_s.pop(pid, None)
        self.pids.discard(pid)
        return is_known


def _is_exiting(pid: int) -> bool:
    process = scan.read_process(pid)
    return process is not None and process.is_exiting
