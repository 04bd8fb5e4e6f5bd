"""What became of a check, from how its child ended. Pure.

Nothing that the policy's output can do leads from here to `infra_failed`; what is
not explained leads to one more try alone, and the second time to 0 (docs/decisions).
Source: DESIGN.md section 6.
"""

import signal
from enum import Enum

from retinue.checks.records import Ended, Judged, Limits
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import Record

_WORDS: dict[int, str] = {
    signal.SIGSEGV: "crashed the checker (segmentation fault)",
    signal.SIGABRT: "crashed the checker (abort)",
    signal.SIGBUS: "crashed the checker (bus error)",
    signal.SIGILL: "crashed the checker (illegal instruction)",
    signal.SIGFPE: "crashed the checker (arithmetic fault)",
    signal.SIGSYS: "made a forbidden system call",
    signal.SIGXFSZ: "wrote a file beyond the disk limit",
}


class Closing(str, Enum):
    """Who ended the conversation with a child, and why."""

    RESULT = "result"
    """The child sent its one result."""
    WALL = "wall"
    """Out of wall time; we killed it."""
    CPU = "cpu"
    """Its tree used more CPU time than it may; we killed it."""
    VIOLATION = "violation"
    """It sent what it must not; we killed it."""
    GONE = "gone"
    """It ended without a result."""
    WARM_LOST = "warm_lost"
    """The warm parent ended under it."""


class End(Record, frozen=True):
    """How the conversation with one child came to its end."""

    closing: Closing
    detail: str = ""
    judged: Judged | None = None
    ended: Ended | None = None
    """None: not reaped in the time we wait for it."""
    cpu_s: float = 0.0
    """As measured by us, since the conversation about the response (or the gold) began."""


class Judgement(Record, frozen=True):
    """Outcome and reason; `kind` None: try once more, alone."""

    kind: OutcomeKind | None
    reason: str
    score: float | None = None
    is_error: bool = False
    """The verifier raised on this response."""
    is_bug: bool = False
    """What it raised has its cause in the verifier, as far as the child can be believed."""


def judge_response(end: End, limits: Limits) -> Judgement:
    """Say what a response that was handed over came to."""
    match end.closing:
        case Closing.RESULT if end.judged is not None:
            return _judge_result(end.judged, end, limits)
        case Closing.WALL:
            return _zero(OutcomeKind.TIMED_OUT, f"ran past its wall limit of {limits.wall_s:g} s")
        case Closing.CPU:
            return _zero(OutcomeKind.TIMED_OUT, f"ran past its CPU limit of {limits.cpu_s:g} s")
        case Closing.VIOLATION:
            return _zero(OutcomeKind.KILLED, f"broke the protocol: {end.detail}")
        case Closing.GONE:
            return _judge_gone(end, limits)
    return Judgement(None, "the warm parent died under this check")


def judge_preparation(end: End, limits: Limits, was_short: bool) -> Judgement:
    """Say what a child that ended before it had prepared gold and arguments means; no response was seen.

    Shape:  kind None: try once more in a fresh child; what fails the same way twice is then ours.
    """
    match end.closing:
        case Closing.WALL if was_short:
            return Judgement(None, f"preparing gold ran past {limits.wall_s:g} s while the node was short")
        case Closing.WALL | Closing.CPU:
            return Judgement(OutcomeKind.REJECTED, f"preparing gold and args ran past {limits.wall_s:g} s")
        case Closing.VIOLATION:
            return Judgement(OutcomeKind.REJECTED, f"preparing gold broke the protocol: {end.detail}")
        case Closing.GONE if (words := _explain(end, limits)) is not None:
            return Judgement(OutcomeKind.REJECTED, f"preparing gold and args {words[1]}")
        case Closing.GONE:
            return Judgement(None, "the child was killed from outside before it saw the response")
    return Judgement(None, "the warm parent died before the response was seen")


def judge_second(kind: OutcomeKind, first: str, second: str) -> Judgement:
    """Say what two unexplained ends in a row mean."""
    reason = first if first == second else f"{first}; then {second}"
    return Judgement(kind, f"twice: {reason}", 0.0 if kind is OutcomeKind.KILLED else None)


def judge_rehearsal(judgement: Judgement) -> Judgement | None:
    """Say what an empty response, tried before the real one was seen, says about the verifier; None: nothing.

    Only what the policy had no part in may be called the request's fault: this depends on gold and args alone.
    """
    if not judgement.is_bug:
        return None
    return Judgement(OutcomeKind.REJECTED, f"the verifier fails on an empty response: {judgement.reason}", is_bug=True)


def _judge_result(judged: Judged, end: End, limits: Limits) -> Judgement:
    if end.cpu_s > limits.cpu_s:
        return _zero(OutcomeKind.TIMED_OUT, f"ran past its CPU limit of {limits.cpu_s:g} s")
    if judged.error is not None:
        reason = f"the verifier raised: {judged.error}"
        return Judgement(OutcomeKind.KILLED, reason, 0.0, is_error=True, is_bug=judged.is_bug)
    return Judgement(OutcomeKind.SCORED, judged.reason, judged.score)


def _judge_gone(end: End, limits: Limits) -> Judgement:
    words = _explain(end, limits)
    if words is None:
        return Judgement(None, "the child was killed from outside while it judged this response")
    return _zero(*words)


def _explain(end: End, limits: Limits) -> tuple[OutcomeKind, str] | None:
    """Find what ended a child that said nothing; None: a SIGKILL that neither we nor its own limits sent.

    Inside its pid namespace nothing can SIGKILL pid 1: it came from the kernel or from outside.
    """
    ended = end.ended
    if ended is None:
        return None
    if ended.signal == signal.SIGXCPU or ended.cpu_s >= limits.cpu_s:
        return OutcomeKind.TIMED_OUT, f"ran past its CPU limit of {limits.cpu_s:g} s"
    if ended.signal == signal.SIGKILL:
        if ended.max_rss_bytes < limits.memory_bytes // 2:
            return None
        return OutcomeKind.KILLED, f"was killed with {ended.max_rss_bytes // 2**20} MiB in use"
    if ended.signal is not None:
        return OutcomeKind.KILLED, _WORDS.get(ended.signal, f"ended by signal {ended.signal}")
    return OutcomeKind.KILLED, f"exited with {ended.code} and without a result"


def _zero(kind: OutcomeKind, reason: str) -> Judgement:
    return Judgement(kind, reason, 0.0)
