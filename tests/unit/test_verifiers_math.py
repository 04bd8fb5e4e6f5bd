"""`math` at its awkward moments: what the library misreads, what is too long or too deep, what cannot be a gold."""

import signal
import sys
from typing import Any

import pytest

from retinue.checks.plugin import Unverifiable
from retinue.checks.verifiers import math
from retinue.checks.verifiers.comparable import CHEAP_MAX, count_terms, try_comparing
from retinue.checks.verifiers.extract import find_boxed, find_nesting
from retinue.checks.verifiers.reading import read_expression
from retinue.checks.verifiers.tidy import find_choice, find_digits, split_percent, tidy_latex
from retinue.terms.record import to_json


def judge(response: str, gold: Any, **args: Any) -> tuple[float, str]:
    score = math.check(response, math.prepare(gold, args), args)
    assert isinstance(score, tuple)
    to_json(score)  # a reason that cannot be sent would cost the row its result
    return score


@pytest.mark.parametrize(
    ("misread_as", "boxed"),
    [
        ("2", "2√3"),
        ("1.2", r"\langle 1,2\rangle"),
        ("0", r"0.\overline{3}"),
        ("16", r"16\frac{2}{3}\%"),
        ("2", r"x=1 \\ y=2"),
        ("2", r"\{x \mid x > 2\}"),
        ("1", r"x < -1 \lor x > 1"),
        ("2", r"2\mathrm{i}"),
        (r"2\pi", r"2\pi h r"),
        ("5", r"5 \clubsuit x"),
    ],
)
def test_an_answer_of_which_the_library_reads_the_first_part_is_not_that_part(misread_as: str, boxed: str) -> None:
    assert judge(rf"$\boxed{{{boxed}}}$", misread_as)[0] == 0.0


def test_equal_integers_of_a_hundred_thousand_digits_are_equal_and_one_digit_makes_them_unequal() -> None:
    digits = "7" * 100_000
    assert judge(rf"$\boxed{{{digits}}}$", digits)[0] == 1.0
    assert judge(rf"$\boxed{{{digits[:-1]}8}}$", digits)[0] == 0.0
    assert judge(f"The exact value is {digits}.", digits)[0] == 1.0
    assert judge(f"The exact value is {digits}7.", digits)[0] == 0.0


def test_an_integer_of_five_thousand_digits_equals_the_power_it_is() -> None:
    sys.set_int_max_str_digits(0)
    written = str(2**16_000)
    sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    assert judge(rf"$\boxed{{{written}}}$", "2^{16000}")[0] == 1.0


def test_a_gold_of_five_thousand_digits_may_be_a_number_of_json() -> None:
    assert judge(rf"$\boxed{{1{'0' * 5000}}}$", 10**5000)[0] == 1.0


def test_the_digit_limit_of_the_process_is_as_before() -> None:
    before = sys.get_int_max_str_digits()
    judge(rf"$\boxed{{{'1' * 9000}}}$", "7")
    assert sys.get_int_max_str_digits() == before


def test_brackets_deeper_than_any_answer_are_refused_with_a_reason() -> None:
    for response in (rf"\boxed{{{'(' * 400}7{')' * 400}}}", "(" * 400 + "7" + ")" * 400):
        score, reason = judge(response, "7")
        assert (score, "200 deep" in reason) == (0.0, True)


def test_twenty_brackets_around_a_number_are_that_number() -> None:
    assert judge(rf"\boxed{{{'(' * 20}7{')' * 20}}}", "7")[0] == 1.0


def test_a_long_response_without_a_box_is_read_at_its_end_and_says_so() -> None:
    score, reason = judge("x" * 10_000_000 + " so it is 4", "4")
    assert score == 1.0
    assert "last 50,000 characters of 10,000,011 read" in reason


@pytest.mark.parametrize(
    ("response", "gold", "args"),
    [
        ("x" * 60_000 + r" so \boxed{4}", "4", {}),
        (r"\boxed{4}" + "x" * 60_000, "5", {}),
        ("x" * 60_000, "4", {"extract": "boxed"}),
        ("x" * 60_000 + f" so it is {'7' * 400}", "7" * 400, {}),
    ],
)
def test_a_long_response_that_was_searched_whole_does_not_say_that_it_was_not(
    response: str, gold: str, args: dict[str, Any]
) -> None:
    assert "characters of" not in judge(response, gold, **args)[1]


def test_a_box_is_found_before_ten_megabytes_of_babble() -> None:
    assert judge(r"\boxed{4} " + "x " * 5_000_000, "4")[0] == 1.0


def test_a_box_with_more_than_the_library_is_given_is_refused() -> None:
    assert "at most 50,000" in judge(rf"\boxed{{{'x+' * 30_000}1}}", "4")[1]


@pytest.mark.parametrize(
    "response",
    [r"\boxed{" * 100_000, r"\boxed{}" * 100_000, "{" * 1_000_000, "$" * 100_000, "1 " * 25_000, "\\" * 100_000],
    ids=["open boxes", "empty boxes", "braces", "dollars", "numbers", "backslashes"],
)
def test_a_response_made_to_be_slow_to_search_is_judged(response: str) -> None:
    assert judge(response, "4")[0] == 0.0


@pytest.mark.parametrize(
    "response", ["", " \n", "\x00", "\ud800", r"\boxed{\ud800}", "\\boxed{\ud800}", "\\boxed{\x00}"]
)
def test_odd_bytes_and_silence_score_nothing_and_their_reason_can_be_sent(response: str) -> None:
    assert judge(response, "4")[0] == 0.0


def test_odd_bytes_beside_an_answer_do_not_spoil_it() -> None:
    assert judge("\ud83d \x00 the answer is \\boxed{4}\ufffe", "4")[0] == 1.0


@pytest.mark.parametrize(
    ("gold", "args", "told"),
    [
        (True, {}, "bool"),
        (None, {}, "NoneType"),
        ({}, {}, "dict"),
        ([], {}, "empty list"),
        (["4", None], {}, "NoneType"),
        ("", {}, "as mathematics"),
        (float("nan"), {}, "as mathematics"),
        (r"\frac{1", {}, "braces"),
        (r"\boxed{5", {}, "not closed"),
        ("(" * 300, {}, "200 deep"),
        ("5", {"tolerence": 0.1}, "tolerence"),
        ("5", {"tolerance": "small"}, "tolerance"),
        ("5", {"tolerance": -1}, "negative"),
        ("5", {"extract": "first"}, "first"),
        ("5", {"percent": True}, "percent"),
    ],
)
def test_a_gold_or_argument_that_cannot_be_meant_is_named_before_the_response(
    gold: Any, args: dict[str, Any], told: str
) -> None:
    with pytest.raises(Unverifiable, match=told):
        math.prepare(gold, args)


def test_gold_that_was_not_prepared_is_read_by_the_check() -> None:
    assert math.check(r"\boxed{4}", "4", {}) == (1.0, "'4' equals '4'")
    with pytest.raises(Unverifiable):
        math.check(r"\boxed{4}", {}, {})


@pytest.mark.parametrize(
    ("gold", "is_cheap"),
    [
        ("5", True),
        (r"\frac{3}{4}", True),
        (r"\frac{\sqrt{3}+1}{2}", True),
        ("x^2+2x+1", True),
        (r"3+4\pi i", True),
        ("2^{60}", True),
        ("100000000!", False),
        ("2^{4^{8^{16}}}", False),
        ("((((x+y)^9+1)^9+1)^9+1)^9", False),
        (r"\binom{10^{9}}{10^{8}}", False),
    ],
)
def test_a_gold_is_compared_before_the_response_only_when_that_may_be_slow(gold: str, is_cheap: bool) -> None:
    parsed = read_expression(gold).parsed
    assert (count_terms(parsed[0]) <= CHEAP_MAX) == is_cheap


@pytest.mark.parametrize(
    "gold", [r"\{1, 10!\}", r"x = 10!", r"(1, 10!]", r"\begin{pmatrix}1&10!\\3&4\end{pmatrix}", "10!"]
)
def test_an_expensive_part_of_a_gold_is_found_wherever_it_stands(gold: str) -> None:
    compared: list[Any] = []
    try_comparing(read_expression(gold).parsed, lambda part, probe: compared.append(str(part)))
    assert compared == ["factorial(10)"]


def test_no_timer_or_signal_handler_is_ever_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("alarm", "setitimer", "signal"):
        monkeypatch.setattr(signal, name, lambda *_: pytest.fail("a timer of the library is on"))
    assert judge(r"\boxed{x^2+2x+1}", "(x+1)^2")[0] == 1.0
    assert judge("the answer is 3/4", "0.75")[0] == 1.0


def test_warming_leaves_the_next_check_as_it_would_be() -> None:
    before = judge(r"\boxed{[0,5)}", r"0 \le x < 5")
    math.warm()
    assert judge(r"\boxed{[0,5)}", r"0 \le x < 5") == before


@pytest.mark.parametrize(
    ("response", "boxes"),
    [
        (r"\boxed{1} then \boxed{2}", ["2"]),
        (r"x=\boxed{1} or x=\boxed{2}", ["1", "2"]),
        (r"$\boxed{1}$, $\boxed{2}$ and $\boxed{3}$", ["1", "2", "3"]),
        (r"\boxed{1}. \boxed{2}", ["2"]),
        (r"\boxed{2} or \boxed{2}", ["2"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed{\{1\}}", [r"\{1\}"]),
        (r"\boxed{\boxed{1}}", ["1"]),
        (r"\boxed 52.", ["52"]),
        (r"\boxed{} ", []),
        (r"\boxes{1} \fbox{3} boxed{4}", ["3"]),
        ("nothing", []),
    ],
)
def test_the_last_box_is_the_answer_and_a_run_of_boxes_is_one(response: str, boxes: list[str]) -> None:
    assert find_boxed(response) == boxes


def test_what_is_written_is_tidied_without_changing_what_it_says() -> None:
    assert tidy_latex("$1\\,234\\,567$") == "1234567"
    assert tidy_latex("((x))+((((1))))") == "(x)+(1)"
    assert tidy_latex(r"\begin{pmatrix}1\\2\end{pmatrix}") == r"\begin{pmatrix}1\\2\end{pmatrix}"
    assert split_percent(r"12.5\%") == ("12.5", True)
    assert split_percent("12.5") == ("12.5", False)
    assert [find_digits(text) for text in ("+007", "-1,234", "12,34", "1.0", "٣")] == ["7", "-1234", None, None, None]
    assert [find_choice(text) for text in (r"\text{(B)}\ 12", "C.", "D", "A+B", "K")] == ["B", "C", "D", None, None]
    assert find_nesting("(([{}]))" + ")" * 9 + "(") == 4
