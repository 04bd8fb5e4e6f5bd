"""What a client sends and what it makes of an answer, without a socket: arguments, bodies, replies."""

import json
from typing import Any

import pytest

from retinue.checks.records import CheckRequest
from retinue.client.answer import Broken
from retinue.client.patience import Again, Trouble
from retinue.client.question import Check, build_body, check_question, check_questions
from retinue.client.reply import judge_too_large, parse_line, parse_outcome, parse_retry_after, read_refusal
from retinue.terms.outcome import SCORELESS, Outcome, OutcomeKind
from retinue.terms.record import from_json, to_json

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"verifier": 3}, TypeError, "row 0: verifier is a int, not a str"),
    ({"verifier": ""}, ValueError, "row 0: verifier is empty"),
    ({"response": b"4"}, TypeError, "row 0: response is a bytes, not a str"),
    ({"rollout_id": 7}, TypeError, "row 0: rollout_id is a int, not a str"),
    ({"args": [1]}, TypeError, "row 0: args is a list, not a mapping"),
    ({"timeout_s": 0}, ValueError, "row 0: timeout_s is 0"),
    ({"timeout_s": float("nan")}, ValueError, "row 0: timeout_s is nan"),
    ({"timeout_s": "10s"}, TypeError, "row 0: timeout_s is a str"),
    ({"timeout_s": True}, TypeError, "row 0: timeout_s is a bool"),
    ({"gold": {1, 2}}, TypeError, "row 0: gold and args must be JSON"),
    ({"gold": float("nan")}, ValueError, "row 0: gold and args must be JSON"),
    ({"args": {"f": len}}, TypeError, "row 0: gold and args must be JSON"),
    ({"golden": 1}, TypeError, "row 0: unknown key 'golden'"),
]


@pytest.mark.parametrize(("fields", "kind", "message"), WRONG)
def test_a_wrong_argument_raises_with_its_name(fields: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        check_questions([{"verifier": "math", "response": "4"} | fields])


def test_what_is_sent_is_what_the_service_reads() -> None:
    given = {"verifier": "math", "response": 'a"\n\0é', "gold": [1, {"a": None}], "args": {"b": 2}, "timeout_s": 2.5}
    questions = check_questions([given, Check("math", "4", args=None or {}, rollout_id="r1")])
    first = from_json(build_body(questions[:1], is_single=True), CheckRequest)
    assert first == CheckRequest(**given)
    both = from_json(build_body(questions, is_single=False), dict[str, list[CheckRequest]])["checks"]
    assert both == [first, CheckRequest("math", "4", rollout_id="r1")]


def test_the_keys_of_a_check_are_those_of_the_service() -> None:
    assert Check.__struct_fields__ == CheckRequest.__struct_fields__


def test_a_lone_surrogate_is_sent_as_an_escape() -> None:
    body = build_body([check_question(Check("math", "\ud800"))], is_single=True)
    assert b'"\\ud800"' in body
    assert json.loads(body)["response"] == "\ud800"


@pytest.mark.parametrize("kind", list(OutcomeKind))
def test_an_outcome_arrives_as_it_was_sent(kind: OutcomeKind) -> None:
    sent = Outcome(
        kind, None if kind in SCORELESS else 0.5, "why", 1.0, 0.5, "r1", "math", "checks/0#2", "n1", "checks"
    )
    assert parse_outcome(to_json(sent)) == sent


@pytest.mark.parametrize("kind", SCORELESS)
def test_a_number_beside_an_outcome_without_score_is_dropped(kind: OutcomeKind) -> None:
    assert parse_outcome(to_json(Outcome(kind, 1.0))).score is None


def test_a_score_that_is_no_number_is_no_score() -> None:
    for score in (b"null", b"1e999"):
        try:
            found = parse_outcome(b'{"outcome": "scored", "score": %s}' % score)
        except Broken:
            continue
        assert (found.outcome, found.score) == (OutcomeKind.REJECTED, None)


@pytest.mark.parametrize(
    "line", [b"", b"[]", b'{"index": 0}', b'{"index": "0", "outcome": "scored", "score": 1}', b"\xff"]
)
def test_a_line_that_is_no_result_is_broken(line: bytes) -> None:
    with pytest.raises(Broken):
        parse_line(line)


def test_an_unknown_kind_of_outcome_is_broken_and_not_guessed() -> None:
    with pytest.raises(Broken, match="unreadable outcome"):
        parse_outcome(b'{"outcome": "fine", "score": 1}')


@pytest.mark.parametrize(
    ("status", "trouble", "after_s"),
    [(429, Trouble.BUSY, 2.0), (503, Trouble.BROKEN, 2.0), (500, Trouble.BROKEN, 2.0), (408, Trouble.BROKEN, 2.0)],
)
def test_a_status_that_passes_is_asked_again(status: int, trouble: Trouble, after_s: float) -> None:
    found = read_refusal(status, {"retry-after": "2"}, b"", "checks")
    assert isinstance(found, Again)
    assert (found.trouble, found.after_s) == (trouble, after_s)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"type": "x", "message": "why"}}', "checks answered 400: why"),
        (b'{"error": "why"}', "checks answered 400: why"),
        (b"  why\n so ", "checks answered 400: why so"),
        (b'{"error": {"message": 3}}', 'checks answered 400: {"error": {"message": 3}}'),
        (b"\xff\xfe", "checks answered 400: \ufffd\ufffd"),
        (b"", "checks answered 400"),
    ],
)
def test_the_words_of_a_refusal_are_kept_whatever_their_form(body: bytes, message: str) -> None:
    found = read_refusal(400, {}, body, "checks")
    assert isinstance(found, Outcome)
    assert (found.outcome, found.score, found.reason) == (OutcomeKind.REJECTED, None, message)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0", 0.0), ("", None), ("-1", None), ("nan", None), ("inf", None), ("Wed, 1", None)],
)
def test_a_retry_after_is_seconds_or_nothing(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value) == seconds


def test_who_made_a_check_too_large_decides_whose_fault_it_is() -> None:
    assert judge_too_large(Check("math", "é" * 600), 1300, "checks").outcome is OutcomeKind.KILLED
    assert judge_too_large(Check("math", "\ud800" * 10), 1300, "checks").outcome is OutcomeKind.REJECTED
