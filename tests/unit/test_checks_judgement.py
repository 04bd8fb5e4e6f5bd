"""From how a child ended to an outcome: the whole table, and that nothing a policy does is ever ours."""

import signal

import pytest

from retinue.checks.judgement import Closing, End, judge_preparation, judge_response, judge_second
from retinue.checks.records import Ended, Judged, Limits
from retinue.terms.outcome import OutcomeKind

LIMITS = Limits(wall_s=10.0, cpu_s=10.0, memory_bytes=1024 * 2**20)
SCORED, TIMED_OUT, KILLED = OutcomeKind.SCORED, OutcomeKind.TIMED_OUT, OutcomeKind.KILLED
REJECTED, INFRA = OutcomeKind.REJECTED, OutcomeKind.INFRA_FAILED


def ended(code: int | None = None, by: int | None = None, cpu_s: float = 0.0, rss_mib: int = 50) -> Ended:
    return Ended(child=1, code=code, signal=by, cpu_s=cpu_s, max_rss_bytes=rss_mib * 2**20)


def gone(how: Ended | None) -> End:
    return End(Closing.GONE, ended=how)


def result(score: float = 0.5, error: str | None = None, cpu_s: float = 0.1) -> End:
    return End(Closing.RESULT, judged=Judged("seal", score, "fine", error), cpu_s=cpu_s)


@pytest.mark.parametrize(
    ("end", "kind", "score"),
    [
        (result(0.5), SCORED, 0.5),
        (result(-3.0), SCORED, -3.0),
        (result(1.0, cpu_s=10.1), TIMED_OUT, 0.0),
        (result(1.0, error="ValueError"), KILLED, 0.0),
        (End(Closing.WALL), TIMED_OUT, 0.0),
        (End(Closing.CPU), TIMED_OUT, 0.0),
        (End(Closing.VIOLATION, "babble"), KILLED, 0.0),
        (gone(ended(code=0)), KILLED, 0.0),
        (gone(ended(code=71)), KILLED, 0.0),
        (gone(ended(by=signal.SIGSEGV)), KILLED, 0.0),
        (gone(ended(by=signal.SIGTERM)), KILLED, 0.0),
        (gone(ended(by=63)), KILLED, 0.0),
        (gone(ended(by=signal.SIGXCPU)), TIMED_OUT, 0.0),
        (gone(ended(by=signal.SIGKILL, cpu_s=10.5)), TIMED_OUT, 0.0),
        (gone(ended(by=signal.SIGKILL, rss_mib=512)), KILLED, 0.0),
        (gone(ended(by=signal.SIGKILL, rss_mib=511)), None, None),
        (gone(None), None, None),
        (End(Closing.WARM_LOST), None, None),
    ],
)
def test_a_response_comes_to_this(end: End, kind: OutcomeKind | None, score: float | None) -> None:
    judgement = judge_response(end, LIMITS)
    assert (judgement.kind, judgement.score) == (kind, score)
    assert judgement.reason


def test_no_end_of_a_child_that_saw_the_response_is_our_fault_or_the_datasets() -> None:
    ways = [None, *(ended(code=code) for code in range(256)), *(ended(by=number) for number in range(1, 65))]
    for closing in Closing:
        for how in ways:
            judgement = judge_response(End(closing, ended=how), LIMITS)
            assert judgement.kind in (None, TIMED_OUT, KILLED), (closing, how)
            assert judgement.score == (None if judgement.kind is None else 0.0), (closing, how)


def test_what_stays_unexplained_when_tried_alone_is_the_responses_doing() -> None:
    second = judge_second(KILLED, "the warm parent died", "the child was killed from outside")
    assert (second.kind, second.score) == (KILLED, 0.0)
    assert "the warm parent died; then the child was killed from outside" in second.reason


@pytest.mark.parametrize(
    ("end", "was_short", "kind"),
    [
        (End(Closing.WALL), False, REJECTED),
        (End(Closing.CPU), False, REJECTED),
        (End(Closing.WALL), True, None),
        (End(Closing.CPU), True, REJECTED),  # CPU time is its own, however crowded the node is
        (End(Closing.VIOLATION, "babble"), True, REJECTED),
        (gone(ended(code=0)), True, REJECTED),
        (gone(ended(by=signal.SIGSEGV)), False, REJECTED),
        (gone(ended(by=signal.SIGKILL)), False, None),
        (gone(None), False, None),
        (End(Closing.WARM_LOST), False, None),
    ],
)
def test_a_child_that_never_saw_the_response_says_nothing_about_it(
    end: End, was_short: bool, kind: OutcomeKind | None
) -> None:
    judgement = judge_preparation(end, LIMITS, was_short)
    assert (judgement.kind, judgement.score) == (kind, None)


def test_gold_that_fails_twice_without_an_explanation_is_ours_and_has_no_score() -> None:
    second = judge_second(INFRA, "slow", "slow")
    assert (second.kind, second.score, second.reason) == (INFRA, None, "twice: slow")


def test_only_a_verifier_that_raised_counts_for_its_rate_of_errors() -> None:
    assert judge_response(result(error="ValueError"), LIMITS).is_error
    assert not judge_response(gone(ended(code=1)), LIMITS).is_error
    assert not judge_response(result(), LIMITS).is_error
