"""The current controller, and how many more there may be. Never starts or kills anything itself.

Standard library only.
"""

from retinue.supervise.stub_children import Child
from retinue.supervise.stub_link import Link

RESTARTS = 3
RESTART_WAITS_S = (0.0, 1.0, 3.0)
"""The first restart is at once (nobody should notice it); a machine short of memory or processes gets a moment."""
FORGIVEN_AFTER_S = 600.0
"""A controller that beat for this long makes up for those before it."""
CLOSED_LIMIT_S = 2.0
"""A controller that closed its socket is exiting; one that does not exit is killed after this."""


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
