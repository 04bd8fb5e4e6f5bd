"""Watches what sandboxes need of the node: its memory, and the settings that keep them apart. Decides by numbers alone.

When memory is short somebody must go before the kernel chooses: the newest of the large ones, which is our shortage and
never its fault. A host setting that changed is a security event: no new sandbox until it is as it was.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from retinue.node.host_settings import Drift, has_drifted, read_baseline, read_settings
from retinue.sandbox.node_memory import read_available_bytes, read_limit_bytes

MEMORY_S = 0.25
DRIFT_S = 5.0
SHORT_SHARE = 0.03
SHORT_MIN_BYTES = 256 * 2**20
RELAXED = 1.5
"""So much more than short, and it is over."""
LARGE_SHARE = 0.5


class MemoryWatch:
    """Ends sandboxes while the node is short of memory."""

    def __init__(
        self,
        least_bytes: int,
        weigh: Callable[[], Awaitable[Mapping[str, int]]],
        find_age: Callable[[str], float],
        evict: Callable[[str, str], Awaitable[None]],
        on_short: Callable[[str], None],
        on_relaxed: Callable[[], None],
        read_available: Callable[[], int] = read_available_bytes,
    ) -> None:
        """least_bytes: less available is short; find_age: when a sandbox was made; evict gets name and cause."""
        self.least_bytes = least_bytes or find_least_bytes(read_limit_bytes())
        self._weigh = weigh
        self._find_age = find_age
        self._evict = evict
        self._on_short = on_short
        self._on_relaxed = on_relaxed
        self._read_available = read_available
        self.available_bytes = read_available()
        self.is_short = False

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await asyncio.sleep(MEMORY_S)

    async def look(self) -> None:
        """Look once, and end one sandbox if the node is short."""
        self.available_bytes = self._read_available()
        if self.available_bytes >= self.least_bytes:
            if self.is_short and self.available_bytes >= RELAXED * self.least_bytes:
                self.is_short = False
                self._on_relaxed()
            return
        cause = f"the node is short of memory: {self.available_bytes} bytes available, {self.least_bytes} needed"
        if not self.is_short:
            self.is_short = True
            self._on_short(cause)
        victim = choose_victim(await self._weigh(), self._find_age)
        if victim is not None:
            await self._evict(victim, cause)


def find_least_bytes(total_bytes: int) -> int:
    """Say what must stay available of so much."""
    return max(SHORT_MIN_BYTES, int(SHORT_SHARE * total_bytes))


def choose_victim(weights: Mapping[str, int], find_age: Callable[[str], float]) -> str | None:
    """Choose who goes: the newest of those that use at least half of what the largest does; None: nobody is there.

    Not the largest itself: else a sandbox could choose to be ended by our fault.
    """
    if not weights:
        return None
    large = [name for name, weight in weights.items() if weight >= LARGE_SHARE * max(weights.values())]
    return max(large, key=find_age)


async def watch_drift(node_dir: str, on_change: Callable[[tuple[Drift, ...]], None]) -> None:
    """Tell what of the host's settings differs from what it was, whenever that changes; empty: nothing any more."""
    baseline = (read_baseline(node_dir) if node_dir else None) or read_settings()
    told: tuple[Drift, ...] = ()
    while True:
        drifts = has_drifted(baseline)
        if drifts != told:
            told = drifts
            on_change(drifts)
        await asyncio.sleep(DRIFT_S)


def describe_drifts(drifts: tuple[Drift, ...]) -> str:
    """Say what changed, in words."""
    words = [f"{drift.name} was {drift.before!r} and is {drift.now!r}" for drift in drifts]
    return f"a host setting changed: {'; '.join(words)}"
