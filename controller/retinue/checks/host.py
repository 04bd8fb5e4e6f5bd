"""Runs every check in a child of its own and says what became of it.

A check ends with exactly one outcome, whatever happens to it, to its child, to the
warm parent or to its caller. A slot is free as soon as its conversation is over.
"""

import asyncio
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from retinue.checks.attempt import Attempt
from retinue.checks.judgement import Judgement, judge_second
from retinue.checks.nursery import Nursery
from retinue.checks.quarantine import Check, Quarantine
from retinue.checks.records import CheckRequest, Limits
from retinue.checks.settings import Settings
from retinue.checks.slots import Slots
from retinue.checks.standing import Standing
from retinue.checks.tally import Tally
from retinue.checks.trying import Trying
from retinue.checks.warm_link import WARM_ARGV
from retinue.checks.watch import Watch
from retinue.serving.queue import FairQueue
from retinue.terms.outcome import Outcome, OutcomeKind
from retinue.terms.record import replace

SWEEP_S = 0.5
STOPPING = "service stopping"


class Full(Exception):
    """There is no room for so many checks now."""

    def __init__(self, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"cannot take more checks: the queue is full; try again in {retry_after_s} s")


class Host:
    """The checks of one node."""

    def __init__(self, settings: Settings, warm_argv: Sequence[str] = WARM_ARGV) -> None:
        self.settings = settings
        self.standing = Standing(settings)
        self.ledger = self.standing.ledger
        self.tally = Tally()
        self._slots = Slots(settings.workers)
        self.is_stopping = False
        self._warm_argv = warm_argv
        self._queue: FairQueue[Check] = FairQueue(settings.queue, settings.queue_bytes)
        self._busy: set[Check] = set()
        """Those that somebody is at, or that wait to be judged alone."""
        self.nursery = Nursery(settings.config, settings.spares, self._note_warm, warm_argv)
        self.quarantine = Quarantine(self._build_second, self._judge_alone, self._end_task)
        self.watch = Watch(self.ledger)
        self._trying = Trying(settings.config, self.watch)

    @property
    def queued_count(self) -> int:
        return len(self._queue)

    @property
    def running_count(self) -> int:
        return self._slots.running_count

    def has_room(self, count: int, weight_bytes: int) -> bool:
        """Say whether so many checks could be taken now."""
        return self._queue.has_room(count, weight_bytes)

    def refuse(self, count: int) -> Full:
        """Count checks that find no room, and build what their caller is told."""
        self.tally.refused += count
        return Full(self.tally.retry_after_s(len(self._queue), self.settings.workers))

    def submit(self, requests: Sequence[CheckRequest], caller: str, weight_bytes: int) -> list[Check]:
        """Take checks in; each gets its outcome, in no order.

        Shape:  one check per request, in the same order; `weight_bytes` is what they weigh together.
        Errors: Full when there is no room for all of them: none is taken then.
        """
        if not self._queue.has_room(len(requests), weight_bytes):
            raise self.refuse(len(requests))
        loop = asyncio.get_running_loop()
        checks = []
        for request in requests:
            check = Check(request, self._limit(request), caller, loop.time(), loop.create_future())
            checks.append(check)
            if self.is_stopping:
                self._finish_infra(check, STOPPING)
            elif (complaint := self._find_complaint(request)) is not None:
                self._finish(check, Judgement(OutcomeKind.REJECTED, complaint))
            else:
                self._queue.put(caller, check, weight_bytes // len(requests))
        self._dispatch()
        return checks

    def cancel(self, check: Check) -> None:
        """Forget a check whose caller went away; its child is killed. One that has its outcome is left alone."""
        # Not the future: who is cancelled while awaiting it has cancelled it already.
        if check.is_over:
            return
        check.is_over = True
        self.tally.cancelled += 1
        check.outcome.cancel()
        self._queue.remove(check.caller, check)
        self.quarantine.remove(check)
        self._busy.discard(check)
        if check.task is not None:
            check.task.cancel()

    async def drain(self, limit_s: float) -> None:
        """Take no more; give what runs a short time, answer all the rest that the service stops."""
        self.is_stopping = True
        for check in (*self._queue.take_where(lambda _: True), *self.quarantine.take_all()):
            self._finish_infra(check, STOPPING)
        tasks = [check.task for check in self._busy if check.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=limit_s)
        for check in list(self._busy):
            self._finish_infra(check, STOPPING)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def sweep(self) -> None:
        """Answer checks that waited too long for a warm parent, and give signs of life, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.standing.note_life()
            for check in self._queue.take_where(self._is_out_of_patience):
                self._finish_infra(check, "no warm parent", self.nursery.cause)

    # --- from a slot to an outcome ------------------------------------------------

    def _dispatch(self) -> None:
        while self._slots.has_free and (check := self._queue.pop()) is not None:
            self._slots.take(check)
            self._busy.add(check)
            check.start(self._judge_first(check), self._end_task)

    def _free(self, check: Check) -> None:
        if self._slots.free(check):
            self._dispatch()

    def _step_aside(self, check: Check) -> None:
        if self._slots.step_aside(check):
            self._dispatch()

    async def _judge_first(self, check: Check) -> None:
        attempt = await self._try(check, self.nursery)
        if attempt is None:
            self._finish_infra(check, "no warm parent", self.nursery.cause)
        elif attempt.judgement.kind is not None:
            self._finish(check, attempt.judgement, attempt)
        else:
            check.suspicion = attempt.judgement.reason
            self.tally.retried_alone += 1
            self.quarantine.add(check)

    async def _judge_alone(self, check: Check, nursery: Nursery) -> None:
        """Try a suspect once more; what cannot be explained twice is its own doing."""
        attempt = await self._try(check, nursery)
        if attempt is None:
            self._finish_infra(check, "no warm parent", nursery.cause)
        elif attempt.judgement.kind is not None:
            self._finish(check, attempt.judgement, attempt)
        else:
            self._finish(check, judge_second(OutcomeKind.KILLED, check.suspicion, attempt.judgement.reason), attempt)

    async def _try(self, check: Check, nursery: Nursery) -> Attempt | None:
        return await self._trying.run(
            check,
            nursery,
            patience=lambda: self._find_patience(check, nursery),
            free=lambda: self._free(check),
            step_aside=lambda: self._step_aside(check),
        )

    def _end_task(self, check: Check, task: asyncio.Task[None]) -> None:
        """Give back what the task held; a fault in our own code is one check's `infra_failed`, never silence."""
        self._free(check)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            self._finish_infra(check, "internal error", type(error).__name__)

    def _finish(self, check: Check, judgement: Judgement, attempt: Attempt | None = None, event: str = "") -> None:
        self._busy.discard(check)
        if check.is_over or check.outcome.done():
            return
        check.is_over = True
        kind = judgement.kind or OutcomeKind.INFRA_FAILED
        is_ours = kind is OutcomeKind.INFRA_FAILED
        outcome = Outcome(
            outcome=kind,
            score=judgement.score,
            reason=judgement.reason,
            wall_s=0.0 if attempt is None else round(attempt.wall_s, 6),
            cpu_s=0.0 if attempt is None else round(attempt.cpu_s, 6),
            rollout_id=check.request.rollout_id,
            verifier=check.request.verifier,
            incarnation=self.settings.incarnation,
            node=self.settings.node,
            service=self.settings.service,
            event=(event or judgement.reason) if is_ours else "",
        )
        is_known = check.request.verifier in self.settings.config.verifiers
        warning = self.tally.note(outcome, judgement.is_error, is_known, judgement.is_bug)
        if warning is not None:
            print(f"retinue checks: warning: {warning}", file=sys.stderr, flush=True)
        check.outcome.set_result(outcome)

    def _finish_infra(self, check: Check, event: str, cause: str = "") -> None:
        self._finish(check, Judgement(OutcomeKind.INFRA_FAILED, f"{event}: {cause}" if cause else event), event=event)

    # --- limits and patience --------------------------------------------------------

    def _find_complaint(self, request: CheckRequest) -> str | None:
        """Say what is wrong with a request before anything runs; None: nothing that can be seen."""
        known = self.settings.config.verifiers
        if request.verifier not in known:
            return f"there is no verifier {request.verifier[:100]!r}; there are {', '.join(sorted(known)) or 'none'}"
        if request.timeout_s is not None and request.timeout_s <= 0:
            return f"timeout_s is {request.timeout_s:g}; it is a number of seconds above 0"
        return None

    def _limit(self, request: CheckRequest) -> Limits:
        limits = self.settings.limits
        if request.timeout_s is None:
            return limits
        asked_s = request.timeout_s
        return replace(limits, wall_s=min(asked_s, limits.wall_s), cpu_s=min(asked_s, limits.cpu_s))

    def _is_out_of_patience(self, check: Check) -> bool:
        return self._find_patience(check, self.nursery) <= asyncio.get_running_loop().time()

    def _find_patience(self, check: Check, nursery: Nursery) -> float:
        """Say until when it may wait; for ever while a warm parent runs, however long the line is."""
        if nursery.down_since_s is None:
            return float("inf")
        return max(check.at_s, nursery.down_since_s) + self.settings.patience_s

    # --- the warm parents -------------------------------------------------------------

    def _build_second(self) -> Nursery:
        return Nursery(self.settings.config, 1, lambda: None, self._warm_argv)

    def _note_warm(self) -> None:
        self.standing.note_warm(self.nursery, self.is_stopping)


@asynccontextmanager
async def open_host(settings: Settings, warm_argv: Sequence[str] = WARM_ARGV) -> AsyncIterator[Host]:
    """Run a host while the context lasts; afterwards none of its processes runs."""
    host = Host(settings, warm_argv)
    clockwork = [asyncio.create_task(work) for work in (host.nursery.run(), host.watch.run(), host.sweep())]
    for task in clockwork:
        task.add_done_callback(host.standing.note_failure)
    try:
        yield host
    finally:
        await host.drain(0)
        await host.quarantine.close()
        for task in clockwork:
            task.cancel()
        await asyncio.wait(clockwork)
        host.standing.end()
