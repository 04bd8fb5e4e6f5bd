r"""Mathematics: is the response's answer the same number, set, interval, matrix or formula as the gold?

Gold:   LaTeX ("\\frac{3}{4}"), a number, or a list of acceptable ones.
args:   extract: boxed | any (default any: the last box, else `<answer>`, else the answer in the text);
        percent: either | fraction | ignore (50% is 50 and 0.5 | 0.5 | 50; default either);
        tolerance: relative (absolute when the gold is 0), for answers that were rounded.

Never times itself: a tower of powers hangs, and is killed from outside.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from math_verify import verify
from sympy import Expr
from sympy.core.relational import Equality

from retinue.checks.plugin import Score, Unverifiable
from retinue.checks.verifiers.comparable import try_comparing
from retinue.checks.verifiers.extract import Unclosed, find_boxed, find_tag
from retinue.checks.verifiers.options import quote, read_options
from retinue.checks.verifiers.reading import (
    READ_MAX,
    Reading,
    TooDeep,
    long_integers,
    read_expression,
    read_prose,
)
from retinue.checks.verifiers.tidy import find_digits
from retinue.terms.record import Record

_CHOSEN = re.compile(r"(?:(?i:answer|option|choice)(?:\s+is)?\W{0,4}|\()([A-J])(?:\)|(?![A-Za-z])(?!\s+[a-z]))")
_REVERSED_INTEGER = re.compile(r"\d+-?")
_PROSE_DIGITS_MIN = 300
"""Digits from which a gold integer is looked for in the whole response, not only in its end."""


class MathOptions(Record, frozen=True, forbid_unknown_fields=True):
    """Arguments of `math`."""

    extract: Literal["boxed", "any"] = "any"
    percent: Literal["either", "fraction", "ignore"] = "either"
    tolerance: float | None = None


@dataclass(frozen=True)
class MathGold:
    """What `prepare` made of gold and arguments."""

    readings: tuple[Reading, ...]
    options: MathOptions


def prepare(gold: Any, args: dict[str, Any]) -> MathGold:
    """Read gold and arguments, before anything of the response is seen, and see that the gold can be compared.

    Errors: Unverifiable says which gold cannot be read. One that cannot be compared in time is ended from outside.
    """
    options = read_options(args, MathOptions)
    if options.tolerance is not None and options.tolerance < 0:
        raise Unverifiable(f"args: tolerance {options.tolerance} is negative")
    golds = gold if isinstance(gold, list) else [gold]
    if not golds:
        raise Unverifiable("gold is an empty list; give at least one acceptable answer")
    readings = tuple(_read_gold(one) for one in golds)
    for reading in readings:
        try_comparing(reading.parsed, lambda part, probe: _is_equal([part], [probe], options.tolerance))
    return MathGold(readings, options)


def _read_gold(gold: Any) -> Reading:
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise Unverifiable(f"gold {quote(gold)} is a {type(gold).__name__}; give LaTeX, a number, or a list of them")
    with long_integers():
        text = str(gold)
    try:
        boxed = find_boxed(text)
        reading = read_expression(",".join(boxed) or text.rpartition("####")[2])
    except (Unclosed, TooDeep) as error:
        raise Unverifiable(f"cannot read gold {quote(gold)}: {error}") from None
    if text.count("{") != text.count("}"):
        raise Unverifiable(f"cannot read gold {quote(text)}: its braces do not match")
    if not reading.parsed or (isinstance(gold, float) and gold - gold != 0):
        raise Unverifiable(f"cannot read gold {quote(text)} as mathematics")
    return reading


def check(response: str, gold: Any, args: dict[str, Any]) -> Score:
    """Compare a mathematical answer with the gold."""
    prepared = gold if isinstance(gold, MathGold) else prepare(gold, args)
    try:
        found, note = _read_response(response, prepared)
    except (Unclosed, TooDeep) as error:
        return 0.0, str(error)
    if isinstance(found, str):
        return 0.0, f"{found}{note}"
    shown = found.show()
    for reading in prepared.readings:
        if _is_same(reading, found, prepared.options):
            return 1.0, f"{shown} equals {reading.show()}{note}"
    return 0.0, f"{shown} is not {' or '.join(reading.show() for reading in prepared.readings[:3])}{note}"


def _read_response(response: str, gold: MathGold) -> tuple[Reading | str, str]:
    """Find and read the answer; a string says why there is none. With it, what of a long response was not read."""
    # Boxes are found in all of it: a linear search, and a long number may be longer than what the library is given.
    boxed = ",".join(find_boxed(response))
    if boxed:
        if len(boxed) > READ_MAX and find_digits(boxed) is None:
            return f"the box holds {len(boxed):,} characters; at most {READ_MAX:,} are read", ""
        return read_expression(boxed), ""
    if gold.options.extract == "boxed":
        return r"no \boxed{} in the response", ""
    if any(reading.digits and len(reading.digits) > _PROSE_DIGITS_MIN for reading in gold.readings):
        last = _find_last_integer(response)
        if last:
            return read_expression(last), ""
    note = f" (last {READ_MAX:,} characters of {len(response):,} read)" if len(response) > READ_MAX else ""
    tagged = find_tag(response[-READ_MAX:], "answer")
    return (read_expression(tagged) if tagged else _read_text(response[-READ_MAX:], gold)), note


def _read_text(tail: str, gold: MathGold) -> Reading | str:
    if any(reading.choice for reading in gold.readings):
        letters = _CHOSEN.findall(tail)
        if letters:
            return read_expression(letters[-1])
    return read_prose(tail) or "no expression in the response"


def _find_last_integer(response: str) -> str:
    # Backwards, because a search for the last of many runs from the front is quadratic.
    match = _REVERSED_INTEGER.search(response[::-1])
    return match.group()[::-1] if match else ""


def _is_same(gold: Reading, found: Reading, options: MathOptions) -> bool:
    if gold.choice and found.choice:
        return gold.choice == found.choice
    is_scaled = gold.is_percent != found.is_percent
    if gold.digits and found.digits and not is_scaled and options.tolerance is None:
        return gold.digits == found.digits
    if (not is_scaled or options.percent != "fraction") and _is_equal(gold.parsed, found.parsed, options.tolerance):
        return True
    if not is_scaled or options.percent == "ignore":
        return False
    return _is_equal(_scale(gold), _scale(found), options.tolerance)


def _scale(reading: Reading) -> list[Any]:
    """A percentage as a fraction: the sign is worth a hundredth."""
    if not reading.is_percent:
        return reading.parsed
    return [item / 100 for item in reading.parsed if isinstance(item, Expr)]


def _is_equal(gold: list[Any], found: list[Any], tolerance: float | None) -> bool:
    with long_integers():
        if verify(gold, found, timeout_seconds=None, allow_set_relation_comp=True):
            return True
        if tolerance is None or not gold or not found:
            return False
        return _is_near(_take_value(gold[0]), _take_value(found[0]), tolerance)


def _take_value(item: Any) -> Any:
    return item.rhs if isinstance(item, Equality) else item


def _is_near(gold: Any, found: Any, tolerance: float) -> bool:
    if not all(isinstance(item, Expr) and item.is_number for item in (gold, found)):
        return False
    try:
        distance, size = abs(gold - found).evalf(20), abs(gold).evalf(20)
        return bool(distance <= tolerance * (size or 1))
    except (TypeError, ValueError, OverflowError):
        return False  # infinite, or not a number: near to nothing


_SHAPES: list[tuple[str, str]] = [
    (r"\frac{1}{3}", "0.333"),
    (r"50\%", "0.5"),
    (r"3.5\times 10^{-4}", r"\frac{7}{20000}"),
    (r"2\sqrt{2}", r"\sqrt{8}"),
    (r"\pi", "3.14"),
    (r"x^2+2x+1", "(x+1)^2"),
    (r"x=5", r"5\text{ cm}"),
    (r"y=2x+1", "2x-y+1=0"),
    (r"(1,2)", r"\left(1, \frac{4}{2}\right)"),
    (r"(1,2,3)", "(3,2,1)"),
    (r"[1,2)", r"1 \le x < 2"),
    (r"(-\infty,-1)\cup(1,\infty)", r"x<-1 \text{ or } x>1"),
    (r"\{1,2\}", r"x=2 \text{ or } x=1"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\4&3\end{bmatrix}"),
    (r"\sin^2 x+\cos^2 x", "1"),
    (r"\ln(6)", r"\ln 2+\log_2 8"),
    (r"e^{x}", r"\frac{1}{x}+10!+\binom{5}{2}"),
    (r"3+4i", "4i+3"),
    (r"\text{yes}", r"\text{no}"),
]


def warm() -> None:
    """Fill ANTLR's tables and sympy's caches with one of each shape; a cold first check takes a second."""
    for gold, written in _SHAPES:
        check(rf"So it is $\boxed{{{written}}}$.", prepare(gold, {"tolerance": 1e-9}), {})
    for text in ("The answer is 42.", "Therefore $x = \\frac{1}{2}$ and $y = 2$.", "so it is 3/4, or 75%"):
        check(text, prepare("1", {}), {})


check.prepare = prepare  # type: ignore[attr-defined]
check.warm = warm  # type: ignore[attr-defined]
