"""What the node looks like: our own loop's lag, load, memory. Reads /proc, decides nothing."""

import asyncio
import os
from collections import deque

TICK_S = 0.1
KEPT_S = 120.0
"""Longer than any probe's timeout that makes sense."""


class LagMeter:
    """How late this process's loop runs, now and in the recent past."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late: deque[tuple[float, float]] = deque()
        """(when, how late); only what is worth remembering."""
        self._due_s = self._loop.time() + TICK_S

    async def run(self) -> None:
        """Tick for ever; a tick that comes late is the lag."""
        while True:
            self._due_s = self._loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self._note(self._loop.time())

    def worst_since(self, since_s: float) -> float:
        """Find the worst lag since then, a tick that is overdue right now included."""
        overdue = max(self._loop.time() - self._due_s, 0.0)
        return max([overdue, *(late_s for when_s, late_s in self._late if when_s >= since_s)])

    def _note(self, now_s: float) -> None:
        late_s = max(now_s - self._due_s, 0.0)
        if late_s > TICK_S / 10:
            self._late.append((now_s, late_s))
        while self._late and self._late[0][0] < now_s - KEPT_S:
            self._late.popleft()


def read_load_per_cpu() -> float:
    """Read the one-minute run queue, per CPU that we may use."""
    try:
        return os.getloadavg()[0] / len(os.sched_getaffinity(0))
    except OSError:
        return 0.0


def parse_memory_available(text: str) -> int:
    """Parse /proc/meminfo; MiB that could be used without swapping, 0 when it does not say."""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return 0


def read_memory_free_mib() -> int:
    """Read how much memory is left on the node."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return parse_memory_available(file.read())
    except (OSError, ValueError):
        return 0
