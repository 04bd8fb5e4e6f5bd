"""How long a call goes on trying, and how long it waits in between.

Pure: time and chance are handed in. Waits double from one failure to the next and
are spread, so that a thousand rollouts do not come back together; a server that
says Retry-After is believed. The deadline is the caller's of this module.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from retinue.terms.outcome import Outcome
from retinue.terms.record import Record

WAIT_S = 0.05
WAIT_MAX_S = 5.0
DOUBLINGS_MAX = 12
UNREACHED_S = 30.0
"""A listener that refused everything for so long is not coming back: a keeper holds its gateway's socket for the whole
run, so refusal means that the node's part of the run is gone."""
LOST_MAX = 3
"""`retinue_bad_gateway` in a row: the gateway itself tried up to five replicas each time."""
INFRA_MAX = 2
"""Times one check is asked again after the service itself answered `infra_failed` (it was stopping, say)."""


class Trouble(str, Enum):
    """Why there is no outcome yet."""

    BUSY = "busy"
    """429: the service is full; asking later helps."""
    UNREACHED = "unreached"
    """No connection."""
    BROKEN = "broken"
    """The connection ended, or a 5xx: the service may be starting again."""
    LOST = "lost"
    """The gateway lost the replica and may not send the request again; we may."""
    FAILED = "failed"
    """The service answered `infra_failed`."""


class Again(Record, frozen=True):
    """An attempt that may be made again."""

    trouble: Trouble
    event: str
    """In words, for `Outcome.event`."""
    reason: str = ""
    after_s: float | None = None
    """Retry-After."""
    outcome: Outcome | None = None
    """FAILED only: what the service said; returned when it stays that way."""


@dataclass(slots=True)
class Patience:
    """One caller's state over its attempts."""

    chance: Callable[[], float]
    """Returns a number in [0, 1)."""
    failures: int = 0
    """In a row, since something last came."""
    lost: int = 0
    failed: int = 0
    unreached_since_s: float | None = None

    def progressed(self) -> None:
        """Note that something came."""
        self.failures = self.lost = 0
        self.unreached_since_s = None

    def decide_wait(self, again: Again, now_s: float) -> float | None:
        """Decide how long to wait before the next attempt; None: do not try again."""
        if again.trouble is not Trouble.UNREACHED:
            self.unreached_since_s = None
        elif self.unreached_since_s is None:
            self.unreached_since_s = now_s
        elif now_s - self.unreached_since_s >= UNREACHED_S:
            return None
        self.lost = self.lost + 1 if again.trouble is Trouble.LOST else 0
        self.failed += again.trouble is Trouble.FAILED
        if self.lost >= LOST_MAX or self.failed > INFRA_MAX:
            return None
        if again.after_s is not None:
            # The server named the earliest moment; spread what comes after it.
            return again.after_s + self.chance() * min(max(again.after_s, WAIT_S), 1.0)
        wait_s = min(WAIT_MAX_S, WAIT_S * 2.0 ** min(self.failures, DOUBLINGS_MAX))
        self.failures += 1
        return wait_s * (0.5 + 0.5 * self.chance())
