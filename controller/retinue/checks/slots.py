"""Who may run now: one slot per worker, and slow checks beside them. Pure.

Without the second a few hangs fill all slots for their whole limit, and every
fresh check waits behind them. Bounded, because each still uses memory; beyond
the bound a hang keeps its slot.
"""

from typing import Protocol

ASIDE_PER_WORKER = 4
"""Slow checks that may run beside each worker's own."""


class Holder(Protocol):
    """What runs: a check."""

    has_slot: bool
    is_aside: bool


class Slots:
    """The slots of one host."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._used = 0
        self._aside = 0

    @property
    def running_count(self) -> int:
        """Checks that somebody is at, slow ones too."""
        return self._used + self._aside

    @property
    def has_free(self) -> bool:
        return self._used < self._workers

    def take(self, holder: Holder) -> None:
        """Give a free slot away."""
        self._used += 1
        holder.has_slot = True

    def free(self, holder: Holder) -> bool:
        """Take back what it had; say whether a slot is free now that was not. Asking twice is harmless."""
        if holder.is_aside:
            holder.is_aside = False
            self._aside -= 1
        if not holder.has_slot:
            return False
        holder.has_slot = False
        self._used -= 1
        return True

    def step_aside(self, holder: Holder) -> bool:
        """Let a fresh check have the slot of a slow one; say whether there was room beside."""
        if not holder.has_slot or self._aside >= self._workers * ASIDE_PER_WORKER:
            return False
        holder.has_slot, holder.is_aside = False, True
        self._used -= 1
        self._aside += 1
        return True
