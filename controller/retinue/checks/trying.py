"""Brings one check and one child together, as often as it takes: gold and arguments may need two.

A verifier that is not one of ours is rehearsed before the first response it sees: with the same gold and
arguments and an empty response, in a child of its own. Where it returns no score even then, or cannot import what
it needs, the request is wrong, whatever the policy wrote; what shows only at a response stays that response's fault.
"""

from collections.abc import Callable

from retinue.checks.attempt import Attempt, run_attempt
from retinue.checks.judgement import judge_rehearsal, judge_second
from retinue.checks.nursery import Nursery
from retinue.checks.plugins import BUILTIN
from retinue.checks.quarantine import Check
from retinue.checks.records import CheckRequest, WarmConfig
from retinue.checks.watch import Watch
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import replace

Patience = Callable[[], float]
"""Until when, on the loop clock, a check may wait for a child."""


def _do_nothing() -> None:
    """A rehearsal keeps the slot of its check."""


class Trying:
    """The tries of one host."""

    def __init__(self, config: WarmConfig, watch: Watch) -> None:
        self._watch = watch
        self._proven = {name for name, target in config.verifiers.items() if BUILTIN.get(name) == target}
        """Verifiers that returned a score, or failed for a reason that says nothing about them."""

    async def run(
        self,
        check: Check,
        nursery: Nursery,
        patience: Patience,
        free: Callable[[], None],
        step_aside: Callable[[], None],
    ) -> Attempt | None:
        """Show the response to one child; None: no child came in time."""
        if check.request.verifier not in self._proven:
            fault = await self._rehearse(check, nursery, patience, step_aside)
            if fault is not None:
                free()
                return fault
        return await self._try(check, check.request, nursery, patience, free, step_aside)

    async def _rehearse(
        self, check: Check, nursery: Nursery, patience: Patience, step_aside: Callable[[], None]
    ) -> Attempt | None:
        """Find out whether the verifier can score anything with this gold; None: go on."""
        empty = replace(check.request, response="")
        attempt = await self._try(check, empty, nursery, patience, _do_nothing, step_aside)
        if attempt is None or attempt.judgement.kind is None:
            return None
        if not attempt.saw_response:
            return attempt
        fault = judge_rehearsal(attempt.judgement)
        if fault is None:
            self._proven.add(check.request.verifier)
            return None
        return Attempt(fault)

    async def _try(
        self,
        check: Check,
        request: CheckRequest,
        nursery: Nursery,
        patience: Patience,
        free: Callable[[], None],
        step_aside: Callable[[], None],
    ) -> Attempt | None:
        first = ""
        while True:
            child = await nursery.take(patience)
            if child is None:
                return None
            try:
                attempt = await run_attempt(child, request, check.limits, self._watch, free, step_aside)
            finally:
                child.close()
            if attempt.judgement.kind is not None or attempt.saw_response:
                return attempt
            if first:
                return Attempt(judge_second(OutcomeKind.INFRA_FAILED, first, attempt.judgement.reason))
            first = attempt.judgement.reason
