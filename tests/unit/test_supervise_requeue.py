"""Which ends are tried again, how often, and by whom."""

from typing import Any

import pytest

from retinue.supervise.ending import Cause
from retinue.supervise.stub_requeue import End, decide_requeue, find_end

ALL = ("timeout", "preempted", "node_fail")
FINAL = {cause.value for cause in Cause} - {"deadline", "timeout", "preempted", "node_lost", "signal"}


@pytest.mark.parametrize(
    ("ended_by", "signal_name", "told", "word"),
    [
        ("deadline", "", {}, "timeout"),
        ("timeout", "TERM", {}, "timeout"),
        ("preempted", "TERM", {}, "preempted"),
        ("node_lost", "", {}, "node_fail"),
        ("signal", "USR2", {}, "timeout"),
        ("signal", "TERM", {"reason": "TimeLimit", "restarts": 0}, "timeout"),
        ("signal", "TERM", {"reason": "", "restarts": 0, "is_preempted": True}, "preempted"),
        ("signal", "TERM", {"reason": "", "restarts": 1}, "preempted"),
        ("signal", "TERM", {"reason": "NodeDown", "restarts": 0}, "node_fail"),
        ("signal", "TERM", {"reason": "", "restarts": 0}, ""),
        ("signal", "TERM", {}, ""),
        ("signal", "INT", {}, ""),
        ("trainer", "USR2", {}, ""),
        ("node_lost", "", {"reason": "TimeLimit", "restarts": 0}, "timeout"),
        ("node_lost", "", {"reason": "", "restarts": 0, "is_preempted": True}, "preempted"),
    ],
)
def test_an_end_is_named_in_the_policys_words(ended_by: str, signal_name: str, told: dict[str, Any], word: str) -> None:
    assert find_end(ended_by, signal_name, told, attempt=0).word == word


@pytest.mark.parametrize("ended_by", sorted(FINAL))
def test_an_end_that_more_time_would_not_change_is_final(ended_by: str) -> None:
    assert not decide_requeue(ALL, 3, 0, find_end(ended_by, "", {}, 0)).is_requeued


@pytest.mark.parametrize("word", ALL)
def test_another_attempt_is_asked_for_until_all_are_used(word: str) -> None:
    asked = [decide_requeue((word,), 3, attempt, End(word)) for attempt in range(5)]
    assert [decision.is_wanted for decision in asked] == [True, True, True, False, False]
    assert [decision.is_requeued for decision in asked] == [True, True, True, False, False]
    assert "attempt 1 of 3" in asked[0].reason
    assert "attempt 3 of 3" in asked[2].reason


def test_an_end_that_the_policy_does_not_name_is_not_tried_again() -> None:
    decision = decide_requeue(("timeout",), 3, 0, End("preempted"))
    assert (decision.is_requeued, decision.is_wanted) == (False, False)
    assert "preempted" in decision.reason


def test_what_slurm_has_queued_again_itself_is_not_asked_for_twice_and_not_denied() -> None:
    for end in (find_end("signal", "TERM", {"restarts": 2}, attempt=1), End("node_fail", is_queued=True)):
        decision = decide_requeue(("timeout",), 1, 1, end)
        assert (decision.is_requeued, decision.is_wanted) == (True, False)


def test_a_restart_that_was_this_attempts_own_beginning_is_no_new_one() -> None:
    assert not find_end("signal", "TERM", {"restarts": 1}, attempt=1).is_queued


def test_without_a_policy_nothing_is_asked_for() -> None:
    assert not decide_requeue((), 0, 0, End("timeout")).is_wanted
