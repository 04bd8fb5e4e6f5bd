"""What went wrong on our side, from when to when: so that a trainer can mask what was scored meanwhile. Pure.

And how often each verifier raises: one that fails on every fifth response is
broken, not strict.
"""

from collections import deque
from collections.abc import Callable, Iterable

from retinue.terms.outage import Outage
from retinue.terms.record import replace

KEPT = 1000
"""Entries; the oldest closed one goes first."""
RATED = 50
"""Checks of one verifier that its rate of errors is taken over."""
RATE_WARN = 0.2
FIRST = 10
"""A verifier that raised on each of its first so many responses is broken for all of them."""


class Ledger:
    """The outages of one checks service, oldest first."""

    def __init__(
        self, service: str, node: str, on_change: Callable[[Outage], None] = lambda outage: None, replica: str = ""
    ) -> None:
        self._service = service
        self._replica = replica
        self._node = node
        self._on_change = on_change
        """Told of each entry twice: when it begins, and when it is over."""
        self._closed: deque[Outage] = deque(maxlen=KEPT)
        self._open: dict[str, Outage] = {}

    def begin(self, cause: str, from_utc: float, detail: str = "") -> None:
        """Note that something lasts from now on; a second beginning of the same changes nothing."""
        if cause not in self._open:
            self._open[cause] = Outage(self._service, self._node, from_utc, None, cause, detail, self._replica)
            self._on_change(self._open[cause])

    def end(self, cause: str, to_utc: float) -> None:
        """Note that it is over; an end without a beginning changes nothing."""
        outage = self._open.pop(cause, None)
        if outage is not None:
            self._close(outage, to_utc)

    def close_left(self, outages: Iterable[Outage], to_utc: float) -> None:
        """Close what a predecessor that was killed left open."""
        for outage in outages:
            words = f"{outage.detail}; host restarted" if outage.detail else "host restarted"
            self._close(replace(outage, detail=words), to_utc)

    def end_all(self, to_utc: float) -> None:
        """Close what is open: the service ends, and with it what was wrong with it."""
        for cause in list(self._open):
            self.end(cause, to_utc)

    def _close(self, outage: Outage, to_utc: float) -> None:
        closed = replace(outage, to_utc=max(to_utc, outage.from_utc))
        self._closed.append(closed)
        self._on_change(closed)

    def read(self, since_utc: float = 0.0) -> list[Outage]:
        """List what lasted at `since_utc` or began later, in the order in which it began."""
        known = sorted((*self._closed, *self._open.values()), key=lambda outage: outage.from_utc)
        return [outage for outage in known if outage.touches(since_utc)]


class ErrorRates:
    """How many of each verifier's last checks ended because it raised on the response."""

    def __init__(self) -> None:
        self._last: dict[str, deque[bool]] = {}
        self._warned: set[str] = set()
        self._broken: set[str] = set()

    def note(self, verifier: str, is_error: bool) -> str | None:
        """Count one check; returns a warning in words when the rate has just passed the line, else None."""
        last = self._last.setdefault(verifier, deque(maxlen=RATED))
        last.append(is_error)
        if len(last) < RATED and not (len(last) >= FIRST and all(last)):
            return None
        if self.rate(verifier) <= RATE_WARN:
            self._warned.discard(verifier)
            return None
        if verifier in self._warned:
            return None
        self._warned.add(verifier)
        return f"verifier {verifier!r} raised on {sum(last)} of its last {len(last)} checks: it may be broken"

    def note_bug(self, verifier: str, reason: str) -> str | None:
        """Note a fault of the verifier itself; returns a warning in words the first time."""
        if verifier in self._broken:
            return None
        self._broken.add(verifier)
        return f"verifier {verifier!r} is broken: {reason}"

    def rate(self, verifier: str) -> float:
        """The share of errors among its last checks; 0 before the first."""
        last = self._last.get(verifier)
        return sum(last) / len(last) if last else 0.0

    @property
    def warned(self) -> frozenset[str]:
        return frozenset(self._warned)
