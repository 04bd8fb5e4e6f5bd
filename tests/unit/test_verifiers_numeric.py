# ruff: noqa: RUF001 - the look-alikes of minus and times are tested
"""`numeric`: which number is the answer, how it is written, and what counts as near."""

from typing import Any

import pytest

from retinue.checks.plugin import Unverifiable
from retinue.checks.verifiers import numeric
from retinue.terms.record import to_json


def judge(response: str, gold: Any, **args: Any) -> float:
    score = numeric.check(response, numeric.prepare(gold, args), args)
    assert isinstance(score, tuple)
    to_json(score)
    return score[0]


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        ("The answer is 42.", 42),
        ("first 41, then 42", 42),
        ("x = -3/4", -0.75),
        ("1 1/2 cups", 1.5),
        (r"1\frac{1}{2}", "3/2"),
        (r"\dfrac{3}{4}", 0.75),
        ("$1,234.50", 1234.5),
        ("-$5", -5),
        (r"1\,234", 1234),
        ("1{,}234", 1234),
        ("12 345 678", 12345678),
        ("1.5e-3", 0.0015),
        (r"$1.5\times 10^{-3}$", "1.5e-3"),
        ("6.02×10^23", "6.02e23"),
        ("10^6", 1_000_000),
        ("−7", -7),
        ("3-5", 5),
        (".5", 0.5),
        ("3.", 3),
        ("5 kg", 5),
        ("5 percent", 5),
        ("area 5 m^2", 5),
        ("\ud800 5 \x00", 5),
        ("5", [4, "5"]),
    ],
)
def test_a_number_is_read_as_it_is_written(written: str, gold: Any) -> None:
    assert judge(written, gold) == 1.0


@pytest.mark.parametrize(
    ("written", "not_this"),
    [
        ("12km", 1),
        ("12km", 12),
        ("12.5km", 12),
        ("10^6", 10),
        ("x^2", 2),
        ("H2O", 2),
        ("3D", 3),
        ("3 - 5", 5),
        ("1000000001", 1000000000),
        ("0.333", "1/3"),
        ("", 0),
        ("none", 0),
        ("1/0", 1),
        ("9" * 5000, 9),
        ("1e999999999999", 1),
        ("x" * 1_000_000, 0),
        ("٣", 4),
    ],
)
def test_a_part_of_something_else_is_no_number(written: str, not_this: Any) -> None:
    assert judge(written, not_this) == 0.0


@pytest.mark.parametrize(
    ("written", "args", "score"),
    [
        ("3.14", {"relative": 0.01}, 1.0),
        ("3.14", {"relative": 0.0001}, 0.0),
        ("3.14", {"absolute": 0.01}, 1.0),
        ("3.14", {"absolute": 0.001}, 0.0),
        ("3.14", {"absolute": 0.001, "relative": 0.01}, 1.0),
        ("3.14159", {"relative": 0, "absolute": 0}, 1.0),
        ("3.141590000001", {}, 1.0),
        ("3.1416", {}, 0.0),
    ],
)
def test_the_wider_tolerance_counts_and_without_one_rounding_does_not_pass(
    written: str, args: dict[str, Any], score: float
) -> None:
    assert judge(written, 3.14159, **args) == score


@pytest.mark.parametrize(
    ("percent", "as_fifty", "as_half"), [("either", 1.0, 1.0), ("fraction", 0.0, 1.0), ("ignore", 1.0, 0.0)]
)
def test_a_percent_sign_is_worth_what_the_argument_says(percent: str, as_fifty: float, as_half: float) -> None:
    assert judge("50%", 50, percent=percent) == as_fifty
    assert judge("50%", 0.5, percent=percent) == as_half
    assert judge("50%", "50%", percent=percent) == 1.0


def test_two_percentages_are_compared_as_percentages() -> None:
    assert judge("0.5%", "50%") == 0.0


@pytest.mark.parametrize("written", ["12km", "12 km", "12 km^2", "12 m2", "12 m/s^{2}", "12°C", "12"])
def test_a_unit_is_ignored_when_asked(written: str) -> None:
    assert judge(f"It is {written}", 12, units=True) == 1.0


def test_the_first_or_the_boxed_number_is_taken_when_asked() -> None:
    assert judge("3 then 4", 3, extract="first") == 1.0
    assert judge(r"\boxed{7} then 8", 7, extract="boxed") == 1.0
    assert judge("7", 7, extract="boxed") == 0.0
    assert judge(r"\boxed{7", 7, extract="boxed") == 0.0


def test_a_comma_is_the_point_where_people_write_it_so() -> None:
    assert judge("1.234,56", 1234.56, point=",") == 1.0
    assert judge("1,234.56", "1.234,56", point=",") == 0.0


@pytest.mark.parametrize(
    ("gold", "args", "told"),
    [
        (True, {}, "bool"),
        (None, {}, "NoneType"),
        ("five", {}, "not a number"),
        ("3 4", {}, "not a number"),
        ("", {}, "not a number"),
        (float("inf"), {}, "not a number"),
        ([], {}, "empty list"),
        pytest.param(10**5000, {}, "4,300 digits", id="five thousand digits"),
        ("1e500", {}, "1e400"),
        ("1/0", {}, "zero"),
        (5, {"relative": -1}, "relative"),
        (5, {"absolute": "1"}, "absolute"),
        (5, {"tolerance": 1}, "tolerance"),
        (5, {"extract": "middle"}, "middle"),
    ],
)
def test_a_gold_or_argument_that_cannot_be_meant_is_named(gold: Any, args: dict[str, Any], told: str) -> None:
    with pytest.raises(Unverifiable, match=told):
        numeric.prepare(gold, args)
