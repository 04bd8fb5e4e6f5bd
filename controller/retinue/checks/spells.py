"""Which short periods of the node are one entry of the ledger. Pure.

The run queue crosses its line many times a minute on a busy node. What stretches a
check's limit is every single period; what a person or a trainer reads is one spell:
from the first of them until the node was good for a while. Not more than a moment
of shortage in all is no spell.
"""

from retinue.checks.pressure import Period, Pressure

OPEN_AFTER_S = 1.0
"""Shortage within a spell, added up, from which it is worth an entry."""
CLOSE_AFTER_S = 5.0
"""Good for so long: it is over, since when it was last short."""


class Spells:
    """The spell that goes on, if one does."""

    def __init__(self) -> None:
        self._first: Period | None = None
        self._is_open = False

    def note(self, pressure: Pressure, now_s: float) -> Period | None:
        """Look at the node's periods; returns the spell that is worth an entry since now, or that is over since now."""
        last = pressure.periods[-1] if pressure.periods else None
        if self._first is None and last is not None and last.to_s is None:
            self._first = last
        if self._first is None or last is None:
            return None
        if last.to_s is not None and now_s - last.to_s >= CLOSE_AFTER_S:
            spell = Period(self._first.from_s, last.to_s, self._first.cause)
            was_open, self._first, self._is_open = self._is_open, None, False
            return spell if was_open else None
        if not self._is_open and pressure.short_between(self._first.from_s, now_s) >= OPEN_AFTER_S:
            self._is_open = True
            return Period(self._first.from_s, None, self._first.cause)
        return None
