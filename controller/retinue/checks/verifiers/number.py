# ruff: noqa: RUF001 - the look-alikes of minus and times are what is translated here
"""Finds numbers in text and reads them exactly.

Values are fractions, so nothing is rounded before a tolerance is asked for.
Bounded: a number whose exponent or length no quantity has is not read, because
its fraction would fill the memory.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

EXPONENT_MAX = 400
DIGITS_MAX = 4_000
"""Below CPython's limit for reading an integer; longer numbers belong to `math`."""

_GLYPHS = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "⁻": "^-", "\u00a0": " ", "\u202f": " ", "٪": "%"})
_SIGN = r"(?P<sign>[+-]?)"
_POWER = r"(?:\s*(?:\*|\\times|\\cdot)\s*10\s*\^\s*\{?\s*(?P<power>[+-]?\d+)\s*\}?|[eE](?P<exponent>[+-]?\d+)(?!\d))"
_UNIT = r"(?P<unit>\s?(?:[^\W\d_]|[°µ$€£])(?:[^\W\d_]|[/.·*^{}²³-]|(?<=[\^{-])\d|(?<=[a-z])\d(?!\d))*)?"


def _build_pattern(thousands: str, point: str, has_units: bool) -> re.Pattern[str]:
    t, p = re.escape(thousands), re.escape(point)
    separator = rf"(?:{t}|\{{{t}\}}|\\,|\\!|(?<=\d)[ ](?=\d\d\d(?!\d)))"
    whole = rf"(?P<whole>\d{{1,3}}(?:{separator}\d{{3}})+(?!\d)|\d+)"
    decimal = rf"(?:{whole}(?:{p}(?P<decimals>\d*))?|{p}(?P<only>\d+))"
    frac = r"\\[dtc]?frac\s*\{\s*(?P<top>-?\d+)\s*\}\s*\{\s*(?P<bottom>\d+)\s*\}"
    slash = r"(?:\s+(?P<over>\d+)|)\s?/\s?(?P<under>\d+)(?![\d/])"
    ten = r"10\s?\^\s?\{?(?P<ten>[+-]?\d+)\}?"
    # Atomic: a number that may not stand where it does (`12km`, `12^3`) must not be found as a shorter one.
    value = rf"(?>{ten}|(?P<mixed>\d+)?\s*{frac}|{decimal}(?:{slash}|{_POWER})?)"
    after = _UNIT if has_units else r"(?![^\W_]|\s?\^)"
    return re.compile(rf"(?<![\w.^\\])(?<!\^\{{){_SIGN}\s?\$?{value}\s*(?P<percent>\\?%|percent\b)?{after}")


_PATTERNS = {
    (point, has_units): _build_pattern("," if point == "." else ".", point, has_units)
    for point in (".", ",")
    for has_units in (False, True)
}


class OutOfRange(ValueError):
    """A number that is too long or has too large an exponent to be read."""


@dataclass(frozen=True)
class Quantity:
    """One number as it was written."""

    text: str
    value: Fraction
    """Without the percent sign: `50%` is 50."""
    is_percent: bool
    is_integer: bool
    """Written without point, exponent or fraction; compared exactly unless a tolerance is given."""


def find_numbers(text: str, point: Literal[".", ","] = ".", has_units: bool = False) -> list[re.Match[str]]:
    """Find every number: `1,234.5`, `-3/4`, `1 1/2`, `\\frac{3}{4}`, `1.5e-3`, `1.5 \\times 10^{-3}`, `50%`.

    A number that is part of a word or a power (`H2O`, `x^2`, `3D`) is none; with
    `has_units` letters may follow it directly (`12km`, `5 m^2`) and are ignored.
    """
    return list(_PATTERNS[(point, has_units)].finditer(text.translate(_GLYPHS)))


def read_number(match: re.Match[str]) -> Quantity:
    """Read what `find_numbers` found.

    Errors: OutOfRange beyond 4,000 digits or an exponent of 400; a fraction over zero, too.
    """
    part = match.groupdict()
    text = match.group().strip()
    power = int((part["power"] or part["exponent"] or part["ten"] or "0")[:12])
    if abs(power) > EXPONENT_MAX or max(map(len, filter(None, part.values())), default=0) > DIGITS_MAX:
        raise OutOfRange("a number of more than 4,000 digits, or beyond 1e400")
    value = _read_value({name: found or "" for name, found in part.items()}) * Fraction(10) ** power
    is_integer = not any(part[name] for name in ("decimals", "only", "top", "under", "power", "exponent", "ten"))
    signed = -value if part["sign"] == "-" else value
    return Quantity(text, signed, bool(part["percent"]), is_integer)


def _read_value(part: dict[str, str]) -> Fraction:
    if int(part["bottom"] or part["under"] or "1") == 0:
        raise OutOfRange("a fraction over zero")
    if part["top"]:
        return int(part["mixed"] or "0") + Fraction(int(part["top"]), int(part["bottom"]))
    digits = "1" if part["ten"] else re.sub(r"\D", "", part["whole"])
    decimals = part["decimals"] or part["only"]
    value = Fraction(int(digits + decimals or "0"), 10 ** len(decimals))
    if part["over"]:
        return value + Fraction(int(part["over"]), int(part["under"]))
    return value / int(part["under"]) if part["under"] else value
