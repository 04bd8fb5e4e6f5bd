"""Who may make a sandbox now, and who waits: first in first out for each caller, round-robin between callers.

The first in line waits for its room however large that is, and holds up the others: else it would wait for ever.
"""

import asyncio
import math

from retinue.sandbox.budget import Budget, Weight
from retinue.sandbox.requests import Fault
from retinue.serving.queue import FairQueue

RETRY_MIN_S, RETRY_MAX_S = 1, 60
RATE_SMOOTHING = 0.1


class _Turn:
    """One create that waits."""

    def __init__(self, caller: str, weight: Weight, future: asyncio.Future[None]) -> None:
        self.caller = caller
        self.weight = weight
        self.future = future


class Admission:
    """The door to a node's budget."""

    def __init__(self, budget: Budget, queue_limit: int) -> None:
        self.budget = budget
        self._queue: FairQueue[_Turn] = FairQueue(queue_limit, 1)
        self._first: _Turn | None = None
        """Its turn has come; it waits for room."""
        self._holds: dict[str, str] = {}
        """Why nobody gets in now: what -> in words."""
        self._gap_s = 1.0
        """Between two sandboxes that went away, smoothed."""
        self._gave_s: float | None = None
        self.refused_count = 0

    @property
    def queued_count(self) -> int:
        return len(self._queue) + (self._first is not None)

    @property
    def holds(self) -> dict[str, str]:
        """Why creates wait, whatever room there is."""
        return self._holds

    async def enter(self, caller: str, weight: Weight, patience_s: float) -> float:
        """Wait for room and take it; gives how long it took.

        Errors: Fault 400 when it can never fit, 429 when too many wait already or patience has run out.
        """
        over = self.budget.could_fit(weight)
        if over:
            most, asked = getattr(self.budget.limits, over), getattr(weight, over)
            raise Fault(
                400, "sandbox_bad_request", f"cannot make a sandbox: {over} of {asked} is over the node's {most}"
            )
        if not self.queued_count and not self._holds and self.budget.fits(weight):
            self.budget.take(weight)
            return 0.0
        if not self._queue.has_room(1, 0):
            raise self._refuse("too many creates wait")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        turn = _Turn(caller, weight, loop.create_future())
        self._queue.put(caller, turn)
        self._dispatch()
        try:
            async with asyncio.timeout(patience_s):
                await asyncio.shield(turn.future)
        except TimeoutError:
            self._leave(turn)
            raise self._refuse(f"there was no room within {patience_s:g} s") from None
        except asyncio.CancelledError:
            self._leave(turn)
            raise
        return loop.time() - began_s

    def give_back(self, weight: Weight) -> None:
        """Take back the room of a sandbox that is gone."""
        now_s = asyncio.get_running_loop().time()
        if self._gave_s is not None:
            self._gap_s += RATE_SMOOTHING * (now_s - self._gave_s - self._gap_s)
        self._gave_s = now_s
        self.budget.give(weight)
        self._dispatch()

    def hold(self, what: str, why: str) -> None:
        """Let nobody in until `let_go` of the same."""
        self._holds[what] = why

    def let_go(self, what: str) -> None:
        """End a hold."""
        if self._holds.pop(what, None) is not None:
            self._dispatch()

    def _dispatch(self) -> None:
        while not self._holds:
            if self._first is None:
                self._first = self._queue.pop()
            turn = self._first
            if turn is None or not self.budget.fits(turn.weight):
                return
            self._first = None
            self.budget.take(turn.weight)
            turn.future.set_result(None)

    def _leave(self, turn: _Turn) -> None:
        if turn.future.done():
            self.budget.give(turn.weight)
        elif self._first is turn:
            self._first = None
        else:
            self._queue.remove(turn.caller, turn)
        self._dispatch()

    def _refuse(self, why: str) -> Fault:
        self.refused_count += 1
        position = self.queued_count
        retry_s = max(RETRY_MIN_S, min(RETRY_MAX_S, math.ceil(position * self._gap_s / 4)))
        held = f" ({'; '.join(self._holds.values())})" if self._holds else ""
        message = f"cannot make a sandbox: {why}{held}; {position} wait; try again in {retry_s} s"
        return Fault(429, "sandbox_full", message, why, retry_s, position)
