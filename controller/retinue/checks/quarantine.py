"""Judges responses whose first end could not be explained: one at a time, each alone with a warm parent.

Beside each other, one that kills warm parents would take innocent ones with it twice.
The second warm parent runs only while there is something to judge.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass

from retinue.checks.nursery import Nursery
from retinue.checks.records import CheckRequest, Limits
from retinue.terms.outcome import Outcome


@dataclass(eq=False)
class Check:
    """One check on its way to an outcome."""

    request: CheckRequest
    limits: Limits
    caller: str
    at_s: float
    """When it came; loop clock."""
    outcome: asyncio.Future[Outcome]
    task: asyncio.Task[None] | None = None
    """Who is at it now; None while it waits."""
    suspicion: str = ""
    """How its first try ended, when that could not be explained."""
    has_slot: bool = False
    is_aside: bool = False
    """Slow: it runs, and gave its slot to a fresh one."""
    is_over: bool = False
    """It has its outcome, or nobody wants it any more."""

    def start(
        self, work: Coroutine[None, None, None], on_end: Callable[["Check", asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        """Let somebody be at it; `on_end` is told when that is over, however it ended."""
        self.task = asyncio.get_running_loop().create_task(work)
        self.task.add_done_callback(lambda task: on_end(self, task))
        return self.task


class Quarantine:
    """The line of suspects."""

    def __init__(
        self,
        build_nursery: Callable[[], Nursery],
        judge: Callable[[Check, Nursery], Coroutine[None, None, None]],
        on_end: Callable[[Check, asyncio.Task[None]], None],
    ) -> None:
        self._build_nursery = build_nursery
        self._judge = judge
        self._on_end = on_end
        self._line: deque[Check] = deque()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._line)

    def add(self, check: Check) -> None:
        """Put a suspect at the end of the line."""
        check.task = None
        self._line.append(check)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, check: Check) -> None:
        """Forget a suspect whose caller went away."""
        with suppress(ValueError):
            self._line.remove(check)

    def take_all(self) -> list[Check]:
        """Empty the line."""
        line = list(self._line)
        self._line.clear()
        return line

    async def close(self) -> None:
        """End the second warm parent, if there is one."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        nursery = self._build_nursery()
        running = asyncio.create_task(nursery.run())
        try:
            while self._line:
                check = self._line.popleft()
                await asyncio.wait([check.start(self._judge(check, nursery), self._on_end)])
        finally:
            running.cancel()
            await asyncio.wait([running])
