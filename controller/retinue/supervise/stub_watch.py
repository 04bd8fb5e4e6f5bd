"""The current controller: how it is started, when it is silent for too long, how many more there may be.

Standard library only.
"""

import os
import socket

from retinue.node import spawn
from retinue.supervise.stub_children import Child
from retinue.supervise.stub_fds import open_log
from retinue.supervise.stub_lines import Link
from retinue.supervise.stub_run import Run

RESTARTS = 3
RESTART_WAITS_S = (0.0, 0.5, 2.0)
"""The first restart is at once (nobody should notice it); a machine short of memory or processes gets a moment."""
FORGIVEN_AFTER_S = 600.0
"""A controller that beat for this long makes up for those before it."""
CLOSED_LIMIT_S = 2.0
"""A controller that closed its socket is exiting; one that does not exit is killed after this."""


def start_controller(run: Run, listener: socket.socket, stop_fd: int) -> tuple[Child, Link]:
    """Start one controller with the listener, its end of a new socketpair, and the stop pipe.

    It gets a session of its own: a terminal's Ctrl-C is the stub's to take.
    """
    link = Link()
    fds = {"--listener": listener.fileno(), "--stub": link.far.fileno(), "--stop": stop_fd}
    options = [word for name, fd in fds.items() for word in (name, str(fd))]
    log_fd = open_log(run.log_path)
    child = Child(
        spawn.Command(
            argv=[*run.controller_argv, run.path, *options],
            env=os.environ,
            stdout=log_fd,
            stderr=2,
            keep_fds=tuple(fds.values()),
        )
    )
    os.close(log_fd)
    link.far.close()
    return child, link


class Watch:
    """Beats, restarts and their budget; all times are the stub's clock."""

    def __init__(self, beat_timeout_s: float) -> None:
        self.beat_timeout_s = beat_timeout_s
        self.child: Child | None = None
        self.link: Link | None = None
        self.starts = 0
        self.used = 0
        """Restarts since the last one that was good for `FORGIVEN_AFTER_S`."""
        self.beat_due_s = 0.0
        self.restart_due_s: float | None = 0.0
        """When the next one is to be started; None while one lives, or none is to follow."""
        self.kill_cause = ""
        """Why we killed the current one."""
        self._started_s = 0.0

    @property
    def is_alive(self) -> bool:
        return self.child is not None and self.child.is_alive

    def note_start(self, child: Child, link: Link, now_s: float) -> None:
        self.child, self.link = child, link
        self.starts += 1
        self.restart_due_s = None
        self.kill_cause = ""
        self._started_s = now_s
        self.note_beat(now_s)

    def note_beat(self, now_s: float) -> None:
        """It lives; long enough, and earlier failures are forgiven."""
        self.beat_due_s = now_s + self.beat_timeout_s
        if now_s - self._started_s >= FORGIVEN_AFTER_S:
            self.used = 0

    def note_closed(self, now_s: float) -> None:
        """Its socket is closed: no beat can come any more."""
        self.beat_due_s = min(self.beat_due_s, now_s + CLOSED_LIMIT_S)

    def note_end(self, now_s: float) -> bool:
        """It is gone; say whether another one may be started."""
        if self.used >= RESTARTS:
            return False
        self.restart_due_s = now_s + RESTART_WAITS_S[self.used]
        self.used += 1
        return True

    def find_kill_cause(self, now_s: float) -> str:
        """Say why the current controller has to be killed now; empty when it has not."""
        if not self.is_alive or self.kill_cause or self.link is None:
            return ""
        if self.link.is_stuck:
            return "does not read what it is told"
        if now_s < self.beat_due_s:
            return ""
        if self.link.is_closed:
            return "closed its socket and did not exit"
        return f"gave no beat for {self.beat_timeout_s:g} s"
