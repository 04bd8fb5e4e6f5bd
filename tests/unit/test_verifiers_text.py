"""`exact` and `regex`: which differences count, which part of the response is meant, which pattern is refused."""

from typing import Any

import pytest

from retinue.checks.plugin import Unverifiable
from retinue.checks.verifiers import exact, regex
from retinue.terms.record import to_json


def judge(module: Any, response: str, gold: Any, args: dict[str, Any]) -> float:
    score = module.check(response, module.prepare(gold, args), args)
    to_json(score)
    return float(score[0])


@pytest.mark.parametrize(
    ("response", "gold", "args", "score"),
    [
        ("Paris", "paris", {}, 1),
        ("Paris", "paris", {"ignore_case": False}, 0),
        (" The  Eiffel\nTower ", "the eiffel tower", {}, 1),
        ("The  Tower", "The Tower", {"whitespace": "keep"}, 0),
        ("a b", "ab", {"whitespace": "remove"}, 1),
        ("Paris.", "paris", {}, 0),
        ("Paris.", "paris", {"ignore_punctuation": True}, 1),
        ("the Beatles", "Beatles", {"ignore_articles": True}, 1),
        ("theatre", "atre", {"ignore_articles": True}, 0),
        ("straße", "STRASSE", {}, 1),
        ("Ａ①", "a1", {}, 1),
        ("Ａ①", "a1", {"unicode": False}, 0),
        ("7", 7, {}, 1),
        ("rome", ["paris", "rome"], {}, 1),
        ("thinking\nParis\n\n", "paris", {"extract": "last_line"}, 1),
        ("", "paris", {"extract": "last_line"}, 0),
        (r"so \boxed{Paris}", "paris", {"extract": "boxed"}, 1),
        (r"so \boxed{Paris", "paris", {"extract": "boxed"}, 0),
        ("<answer>Rome</answer> <answer> Paris </answer>", "paris", {"extract": "answer"}, 1),
        ("</answer>Paris<answer>", "paris", {"extract": "answer"}, 0),
        ("Paris", "paris", {"extract": "answer"}, 0),
        ("", "paris", {}, 0),
        ("\ud800", "paris", {}, 0),
        ("a\x00", "a\x00", {}, 1),
        ("x" * 10_000_000, "x", {}, 0),
    ],
)
def test_exact_counts_the_differences_it_is_told_to_count(
    response: str, gold: Any, args: dict[str, Any], score: float
) -> None:
    assert judge(exact, response, gold, args) == score


@pytest.mark.parametrize(
    ("gold", "args", "told"),
    [
        ("", {}, "every silence"),
        ("?!", {"ignore_punctuation": True}, "every silence"),
        ([], {}, "empty list"),
        ({}, {}, "dict"),
        (True, {}, "bool"),
        ("a", {"ignore_cases": True}, "ignore_cases"),
        ("a", {"ignore_case": "yes"}, "ignore_case"),
        ("a", {"extract": "tag"}, "tag"),
    ],
)
def test_exact_names_a_gold_that_would_match_nothing_or_everything(gold: Any, args: dict[str, Any], told: str) -> None:
    with pytest.raises(Unverifiable, match=told):
        exact.prepare(gold, args)


@pytest.mark.parametrize(
    ("response", "gold", "args", "score"),
    [
        ("abc", "b", {}, 1),
        ("abc", "b", {"mode": "fullmatch"}, 0),
        ("abc", "a.c", {"mode": "fullmatch"}, 1),
        ("ABC", "b", {"flags": ["ignorecase"]}, 1),
        ("a\nb", "^b", {"flags": ["multiline"]}, 1),
        ("a\nb", "a.b", {}, 0),
        ("abc", ["x", "c$"], {}, 1),
        ("Answer: 4\nAnswer: 5", "5", {"pattern": r"Answer: (\d)"}, 1),
        ("Answer: 4\nAnswer: 5", "4", {"pattern": r"Answer: (\d)"}, 0),
        ("Answer: 5", ["4", "5"], {"pattern": r"Answer: (\d)"}, 1),
        ("no answer", "4", {"pattern": r"Answer: (\d)"}, 0),
        ("key=value", "value", {"pattern": "key=(?P<what>.*)", "group": "what"}, 1),
        ("x", "x", {"pattern": "(a)?"}, 0),
        ("", "^$", {}, 1),
        ("\ud800\x00", "\x00", {}, 1),
        ("x" * 10_000_000 + "y", "y$", {}, 1),
    ],
)
def test_regex_matches_the_response_or_compares_its_last_group(
    response: str, gold: Any, args: dict[str, Any], score: float
) -> None:
    assert judge(regex, response, gold, args) == score


@pytest.mark.parametrize(
    ("gold", "args", "told"),
    [
        ("(", {}, "position 0"),
        ("a{99999999999999}", {}, "too large"),
        ("(?P<a>.)(?P<a>.)", {}, "redefinition"),
        (3, {}, "not text"),
        ([], {}, "not text"),
        ("4", {"pattern": "x"}, "no group 1"),
        ("4", {"pattern": "(x)", "group": 2}, "no group 2"),
        ("4", {"pattern": "(x)", "group": "y"}, "no group 'y'"),
        ("4", {"flags": ["unicode"]}, "unicode"),
        ("4", {"mode": "match"}, "match"),
    ],
)
def test_a_pattern_that_does_not_compile_is_refused_before_the_response(
    gold: Any, args: dict[str, Any], told: str
) -> None:
    with pytest.raises(Unverifiable, match=told):
        regex.prepare(gold, args)
