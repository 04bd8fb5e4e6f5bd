"""`instruction`: counting as a person counts, and constraints that nobody could mean."""

from typing import Any

import pytest

from retinue.checks.plugin import Unverifiable
from retinue.checks.verifiers import instruction
from retinue.terms.record import to_json


def judge(response: str, *constraints: dict[str, Any], mode: str = "fraction") -> tuple[float, str]:
    args = {"mode": mode}
    score = instruction.check(response, instruction.prepare(list(constraints), args), args)
    assert isinstance(score, tuple)
    to_json(score)
    return score


@pytest.mark.parametrize(
    ("kind", "response", "count"),
    [
        ("words", "one two three", 3),
        ("words", "Don't over-think it", 3),
        ("words", "-- ... !", 0),
        ("words", "\ud800 a", 1),
        ("sentences", "Mr. Smith went. He saw! Really?", 3),
        ("sentences", "Pi is 3.14 today", 1),
        ("sentences", 'He said "Go." Then he left...', 2),
        ("sentences", "你好。再见。", 2),
        ("sentences", "Use a tool, e.g. a saw. Done", 2),
        ("paragraphs", "a\n\nb\n \nc\nd", 3),
        ("paragraphs", "\n\n\na", 1),
        ("bullets", "- a\n* b\n  + c\n1. d\n2) e\n-no\n3.14 is pi", 5),
        ("characters", "  abc \n", 3),
    ],
)
def test_things_are_counted_as_a_person_counts_them(kind: str, response: str, count: int) -> None:
    assert judge(response, {"kind": kind, "exactly": count})[0] == 1.0
    assert judge(response, {"kind": kind, "exactly": count + 1})[0] == 0.0
    assert judge(response, {"kind": kind, "min": count, "max": count})[0] == 1.0
    assert judge(response, {"kind": kind, "min": count + 1})[0] == 0.0


@pytest.mark.parametrize(
    ("constraint", "kept", "broken"),
    [
        ({"kind": "keywords", "present": ["red fox"]}, "a Red\nfox ran", "a red, fox ran"),
        ({"kind": "keywords", "absent": ["cat"]}, "category", "the CAT"),
        ({"kind": "frequency", "keyword": "go", "exactly": 2}, "go GO gone", "go gone"),
        ({"kind": "starts_with", "text": "Dear"}, " dear Ann", "My dear"),
        ({"kind": "ends_with", "text": "Bye."}, "ok bye.\n", "bye. ok"),
        ({"kind": "json"}, '```json\n{"a": 1}\n```', 'It is {"a": 1}'),
        ({"kind": "json"}, "[1]", "[NaN]"),
        ({"kind": "no_commas"}, "a b", "a, b"),
        ({"kind": "no_commas"}, "a b", "甲、乙"),
        ({"kind": "case", "case": "upper"}, "ABC 1!", "ABC d"),
        ({"kind": "case", "case": "lower"}, "abc 1!", "abc D"),
        ({"kind": "case", "case": "title"}, "The Lord of the Rings", "The lord of the Rings"),
        ({"kind": "case", "case": "upper"}, "A", "12"),
    ],
)
def test_a_constraint_is_kept_by_one_text_and_broken_by_its_neighbour(
    constraint: dict[str, Any], kept: str, broken: str
) -> None:
    assert judge(kept, constraint)[0] == 1.0
    assert judge(broken, constraint)[0] == 0.0


def test_the_score_is_the_fraction_that_is_kept_or_all_or_nothing() -> None:
    asked = ({"kind": "no_commas"}, {"kind": "words", "exactly": 2})
    assert judge("a, b", *asked) == (0.5, "1 of 2 kept; has 1 commas")
    assert judge("a, b", *asked, mode="all")[0] == 0.0
    assert judge("a b", *asked, mode="all")[0] == 1.0


@pytest.mark.parametrize("response", ["", " \n\t"])
def test_silence_keeps_nothing_whatever_it_leaves_out(response: str) -> None:
    assert judge(response, {"kind": "no_commas"}, {"kind": "words", "max": 5})[0] == 0.0


def test_a_response_of_ten_megabytes_is_counted() -> None:
    asked = [{"kind": "words", "exactly": 5_000_000}, {"kind": "bullets", "exactly": 0}, {"kind": "no_commas"}]
    assert judge("a " * 5_000_000, *asked)[0] == 1.0


@pytest.mark.parametrize(
    ("gold", "told"),
    [
        ([], "empty list"),
        ("words", "constraint 1"),
        (["words"], "constraint 1"),
        ([{"kind": "no_commas"}, {"kind": "wrds"}], "constraint 2.*wrds"),
        ([{"min": 3}], "kind"),
        ([{"kind": "words"}], "min, max or exactly"),
        ([{"kind": "words", "min": 3, "max": 2}], "above max"),
        ([{"kind": "words", "min": 3, "exactly": 3}], "alone"),
        ([{"kind": "words", "min": -1}], "0 or more"),
        ([{"kind": "words", "mim": 3}], "mim"),
        ([{"kind": "words", "min": "3"}], "str"),
        ([{"kind": "keywords"}], "present or absent"),
        ([{"kind": "keywords", "present": [" "]}], "no empty keyword"),
        ([{"kind": "frequency", "min": 1}], "keyword"),
        ([{"kind": "frequency", "keyword": "", "min": 1}], "keyword is empty"),
        ([{"kind": "frequency", "keyword": "go"}], "min, max or exactly"),
        ([{"kind": "starts_with", "text": ""}], "text is empty"),
        ([{"kind": "case", "case": "camel"}], "camel"),
    ],
)
def test_a_constraint_that_nobody_could_mean_is_named(gold: Any, told: str) -> None:
    with pytest.raises(Unverifiable, match=told):
        instruction.prepare(gold, {})


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(Unverifiable, match="mode"):
        instruction.prepare([{"kind": "json"}], {"mode": "some"})
