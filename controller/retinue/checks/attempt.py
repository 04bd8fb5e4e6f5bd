"""One child, one check, from gold to end: what is said when, what is timed, what it came to.

The slot is given back as soon as the conversation is over; the child's death is not waited for.
"""

import asyncio
from collections.abc import Callable

from retinue.checks.judgement import Closing, End, Judgement, judge_preparation, judge_response
from retinue.checks.records import CheckRequest, Judged, Limits
from retinue.checks.spare import Child
from retinue.checks.watch import Running, Watch
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import Record

REAP_WAIT_S = 0.1
"""How long an outcome waits for the exact CPU time of a child that was killed."""


class Attempt(Record, frozen=True):
    """What one child made of a check."""

    judgement: Judgement
    wall_s: float = 0.0
    """From the moment the response was handed over; 0 when it was not."""
    cpu_s: float = 0.0
    saw_response: bool = False


async def run_attempt(
    child: Child,
    request: CheckRequest,
    limits: Limits,
    watch: Watch,
    free: Callable[[], None],
    step_aside: Callable[[], None],
) -> Attempt:
    """Lead the one conversation with this child; `free` gives its slot back, `step_aside` once it is slow.

    Errors: none; whatever happens is a judgement. Cancelled: the caller closes the child, which kills it.
    """
    with watch.timed(child, limits, step_aside) as running:
        prepared = await child.prepare(request, limits)
        was_short = watch.short_s(running) > 0
    if prepared is None:
        free()
        end = await _build_end(child, running, None)
        return Attempt(judge_preparation(end, limits, was_short))
    if prepared.rejected is not None:
        free()
        return Attempt(Judgement(OutcomeKind.REJECTED, prepared.rejected))
    with watch.timed(child, limits, step_aside) as running:
        judged = await child.judge(request.response, limits)
        if judged is not None:
            watch.read_cpu(running)
    free()
    end = await _build_end(child, running, judged)
    return Attempt(judge_response(end, limits), running.wall_s, end.cpu_s, saw_response=True)


async def _build_end(child: Child, running: Running, judged: Judged | None) -> End:
    """Gather what is known of how it ended."""
    if judged is not None:
        return End(Closing.RESULT, judged=judged, cpu_s=running.cpu_s)
    ended = await child.settle()
    if ended is None and child.closing is not Closing.WARM_LOST:
        await asyncio.wait([child.fate], timeout=REAP_WAIT_S)
        ended = child.fate.result() if child.fate.done() else None
    total_s = 0.0 if ended is None else ended.cpu_s
    cpu_s = max(running.cpu_s, total_s - running.base_cpu_s)
    return End(child.closing or Closing.GONE, child.detail, None, ended, cpu_s)
