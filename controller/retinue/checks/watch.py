"""The clock of running checks: deadlines that stretch while the node is short, CPU limits, and who is slow.

Ticks ten times a second. A check that ends sooner costs one timer.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from retinue.checks.judgement import Closing
from retinue.checks.ledger import Ledger
from retinue.checks.pressure import Period, Pressure, Sample, compute_queue, find_deadline, parse_running
from retinue.checks.records import Limits
from retinue.checks.spare import Child
from retinue.checks.spells import Spells
from retinue.checks.tree import read_clock, read_tree

TICK_S = 0.1
SLOW_S = 0.2
"""A check older than this yields the CPU to fresh ones."""
NODE_PRESSURE = "node_pressure"


def _do_nothing() -> None:
    """Nobody wants to know."""


@dataclass(eq=False)
class Running:
    """One conversation that is being timed."""

    child: Child
    limits: Limits
    began_s: float
    base_cpu_s: float
    """What the child had used before."""
    cpu_s: float = 0.0
    """As last seen; a lower bound."""
    wall_s: float = 0.0
    """Once it is over."""
    is_slow: bool = False
    on_slow: Callable[[], None] = _do_nothing
    """Told once, when it is older than SLOW_S."""


class Watch:
    """Times every conversation of this host, and looks at the node while it does."""

    def __init__(self, ledger: Ledger) -> None:
        self.pressure = Pressure()
        self.lag_s = 0.0
        """Of the last tick."""
        self._spells = Spells()
        self._ledger = ledger
        self.running: set[Running] = set()
        """Conversations that are going on."""
        self._due_s: float | None = None
        self._cpus = os.cpu_count() or 1

    async def run(self) -> None:
        """Tick until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._due_s = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            self.look()

    def look(self) -> None:
        """Take one sample of the node and of every check that is not fresh."""
        now_s = asyncio.get_running_loop().time()
        lag_s = 0.0 if self._due_s is None else max(now_s - self._due_s, 0.0)
        self.lag_s = lag_s
        surplus = self._look_at_trees(now_s)
        queue = compute_queue(_read_running(), surplus, self._cpus)
        self.pressure.note(Sample(now_s, lag_s, queue))
        self._write_down(self._spells.note(self.pressure, now_s), now_s)

    @contextmanager
    def timed(self, child: Child, limits: Limits, on_slow: Callable[[], None] = _do_nothing) -> Iterator[Running]:
        """Kill the child when it runs past its limits within this context."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        running = Running(child, limits, began_s, read_clock(child.pid), on_slow=on_slow)
        timer = loop.call_at(began_s + limits.wall_s, self._expire, running)
        # Not the loop's clock: some loops round it to the millisecond.
        handed_s = time.monotonic()
        self.running.add(running)
        try:
            yield running
        finally:
            timer.cancel()
            self.running.discard(running)
            running.wall_s = time.monotonic() - handed_s

    def read_cpu(self, running: Running) -> float:
        """Say what the check has used by now.

        Shape:  of a fresh check only its first process is read: /proc costs more than most checks do.
        """
        pid = running.child.pid
        now_s = asyncio.get_running_loop().time()
        total_s = read_tree(pid).cpu_s if now_s - running.began_s > SLOW_S else read_clock(pid)
        running.cpu_s = max(running.cpu_s, total_s - running.base_cpu_s)
        return running.cpu_s

    def short_s(self, running: Running) -> float:
        """How long the node was short since this conversation began."""
        return self.pressure.short_between(running.began_s, asyncio.get_running_loop().time())

    def _expire(self, running: Running) -> None:
        if running not in self.running:
            return
        # A loop that was stalled fires its timers before it has noted the stall.
        self.look()
        loop = asyncio.get_running_loop()
        deadline_s = find_deadline(running.began_s, running.limits.wall_s, self.short_s(running))
        if loop.time() >= deadline_s:
            self.read_cpu(running)
            running.child.kill(Closing.WALL)
        else:
            loop.call_at(deadline_s, self._expire, running)

    def _look_at_trees(self, now_s: float) -> int:
        """Note CPU use, kill who is over the limit, name who is slow; returns the runnable surplus of all."""
        surplus = 0
        for running in list(self.running):
            if now_s - running.began_s < SLOW_S or running.child.closing is not None:
                continue
            use = read_tree(running.child.pid)
            surplus += max(use.runnable - 1, 0)
            running.cpu_s = max(running.cpu_s, use.cpu_s - running.base_cpu_s)
            if running.cpu_s > running.limits.cpu_s:
                running.child.kill(Closing.CPU)
            elif not running.is_slow:
                running.is_slow = True
                running.child.say_slow()
                running.on_slow()
        return surplus

    def _write_down(self, spell: Period | None, now_s: float) -> None:
        if spell is None:
            return
        epoch_s = time.time() - now_s
        if spell.to_s is None:
            self._ledger.begin(NODE_PRESSURE, spell.from_s + epoch_s, spell.cause)
        else:
            self._ledger.end(NODE_PRESSURE, spell.to_s + epoch_s)


def _read_running() -> int | None:
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return parse_running(file.read())
    except OSError:
        return None
