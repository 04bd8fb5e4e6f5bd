"""One check: asked until it is answered, given up at its deadline, never a number that is not one.

After its arguments are right nothing but cancellation is raised: an outage is an
outcome, `infra_failed`.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retinue.client.answer import Broken
from retinue.client.http import Pool, Target, Unreached
from retinue.client.patience import Again, Trouble
from retinue.client.persevering import GivenUp, persevere
from retinue.client.question import BODY_BYTES_MAX, Check, Question, build_body
from retinue.client.reply import TOO_LARGE, judge_too_large, parse_outcome, read_refusal
from retinue.terms.outcome import Outcome, OutcomeKind
from retinue.terms.record import replace

CHECK_S = 10.0
"""A check's own limit where the caller does not say: the default of the checks service."""
STRETCH = 3.0
"""On a short node a wall limit stretches up to so much (DESIGN.md section 6)."""


@dataclass(frozen=True, slots=True)
class Line:
    """The way to one service, from one event loop."""

    pool: Pool
    target: Target
    service: str
    node: str
    """Where this client is: an outage is told from here."""
    headers: Mapping[str, str]
    hold_s: float
    chance: Callable[[], float] = random.random


def build_default_deadline(line: Line, checks: list[Check]) -> float:
    """Return how long the slowest of these may take when nothing is wrong, plus the hold.

    Units:  seconds.
    """
    slowest_s = max((check.timeout_s or CHECK_S for check in checks), default=CHECK_S)
    return slowest_s * STRETCH + line.hold_s


def build_failure(line: Line, check: Check, again: Again | None, waited_s: float, what: str) -> Outcome:
    """Build the outcome of a check that got none: ours, so never a number."""
    if again is not None and again.outcome is not None:
        return again.outcome
    event = again.event if again is not None else "deadline passed"
    last = f"; last: {again.reason or again.event}" if again is not None else ""
    return Outcome(
        OutcomeKind.INFRA_FAILED,
        None,
        reason=f"cannot check at {line.service} ({line.target.url}): {what} after {waited_s:.1f} s{last}",
        wall_s=waited_s,
        rollout_id=check.rollout_id,
        verifier=check.verifier,
        node=line.node,
        service=line.service,
        event=event,
    )


def complete(outcome: Outcome, line: Line, check: Check) -> Outcome:
    """Fill in what an answer that is not a service's own outcome leaves out."""
    return replace(
        outcome,
        verifier=outcome.verifier or check.verifier,
        rollout_id=outcome.rollout_id if outcome.rollout_id is not None else check.rollout_id,
        service=outcome.service or line.service,
        # Where an outage was noticed; which node scored is for the service to say.
        node=outcome.node or (line.node if outcome.outcome is OutcomeKind.INFRA_FAILED else ""),
    )


def translate_trouble(error: Unreached | Broken) -> Again:
    """Turn a failed exchange into a reason to ask again."""
    trouble = Trouble.UNREACHED if isinstance(error, Unreached) else Trouble.BROKEN
    return Again(trouble, str(error))


async def check_one(line: Line, question: Question, deadline_s: float) -> Outcome:
    """Ask one check until it has an outcome.

    Units:  deadline_s seconds from now, waits for a connection and all attempts included.
    """
    reply = await persevere(lambda: _ask_once(line, question), deadline_s, line.chance)
    if isinstance(reply, GivenUp):
        return build_failure(line, question.check, reply.last, reply.waited_s, reply.what)
    return complete(reply, line, question.check)


async def _ask_once(line: Line, question: Question) -> Outcome | Again:
    body = build_body([question], is_single=True)
    if len(body) > BODY_BYTES_MAX:
        return judge_too_large(question.check, len(body), line.service)
    try:
        async with line.pool.ask(line.target, "POST", "/v1/check", line.headers, body) as answer:
            text = await answer.read_whole()
        if answer.status == TOO_LARGE:
            return judge_too_large(question.check, len(body), line.service)
        if answer.status != 200:
            return read_refusal(answer.status, answer.headers, text, line.service)
        outcome = parse_outcome(text)
    except (Unreached, Broken) as error:
        return translate_trouble(error)
    if outcome.outcome is OutcomeKind.INFRA_FAILED:
        return Again(Trouble.FAILED, outcome.event, outcome.reason, outcome=outcome)
    return outcome
