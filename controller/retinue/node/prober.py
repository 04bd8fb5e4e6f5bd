"""Asks the probes of one incarnation, each in its own time, and tells what changed.

One probe is never asked twice at once, and one that hangs delays no other. What
counts as a change is decided in `lifecycle.streak`; this only keeps the time.
"""

import asyncio
from collections.abc import Awaitable, Callable

from retinue.lifecycle.streak import Change, ProbeState
from retinue.node.probe import Answer
from retinue.terms.launch import ProbeKind, ProbeSpec

Ask = Callable[[ProbeSpec], Awaitable[Answer]]


class Prober:
    """The probes of one incarnation, on the running loop."""

    def __init__(self, state: ProbeState, ask: Ask, on_change: Callable[[Change], None]) -> None:
        self.state = state
        self.last_causes: dict[ProbeKind, str] = {}
        """Why each probe's last ask did not pass."""
        self._ask = ask
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._asks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._ended: list[asyncio.Task[None]] = []

    @property
    def is_starting(self) -> bool:
        """Whether its startup probe is still being asked."""
        return self._timer is not None and not self.state.is_startup_passed

    def describe_failing(self) -> str:
        """Say why it is not ready, by the probe that was asked last; empty when it is, or nobody was asked yet."""
        if self.state.is_ready:
            return ""
        causes = [f"{kind.value} probe: {cause}" for kind, cause in self.last_causes.items() if cause]
        return causes[-1] if causes else ""

    def start(self) -> None:
        """Begin to ask."""
        self._timer = asyncio.create_task(self._run())

    def cancel(self) -> None:
        """Ask nothing more; what is under way is being ended when this returns."""
        self._ended = [*self._asks, *([self._timer] if self._timer else [])]
        for task in self._ended:
            task.cancel()
        self._timer = None

    async def wait_ended(self) -> None:
        """Wait until nothing of what `cancel` ended is left."""
        await asyncio.gather(*self._ended, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now_s = self._loop.time()
            for kind in self.state.due(now_s):
                self.state = self.state.note_asked(kind, now_s)
                task = asyncio.create_task(self._ask_one(kind))
                self._asks.add(task)
                task.add_done_callback(self._asks.discard)
            await self._wait()

    async def _wait(self) -> None:
        """Until the next probe is due or an answer changed what is due."""
        due_s = self.state.next_due_s()
        left_s = None if due_s is None else max(due_s - self._loop.time(), 0.0)
        try:
            async with asyncio.timeout(left_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _ask_one(self, kind: ProbeKind) -> None:
        answer = await self._ask(self.state.specs[kind])
        self.last_causes[kind] = answer.cause
        self.state, changes = self.state.observe(kind, answer.verdict, self._loop.time(), answer.cause)
        for change in changes:
            self._on_change(change)
        self._wake.set()
