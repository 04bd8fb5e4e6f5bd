"""Reads one expression: text to sympy, by math-verify, with the library's timer off.

Promises that what is returned is the whole of what was written: where the
library stopped half-way, only the text is kept. Never compares anything.
"""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from latex2sympy2_extended.sets import FiniteSet
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from sympy import And, Integer, Mul, Number, Or, Set, UnevaluatedExpr
from sympy.core.relational import Equality, Relational

from retinue.checks.verifiers.extract import find_nesting
from retinue.checks.verifiers.options import quote
from retinue.checks.verifiers.tidy import find_choice, find_digits, split_percent, tidy_latex

# The library warns, once a process, that its timers are off. They are off on purpose: we kill from outside.
logging.getLogger("math_verify").setLevel(logging.ERROR)

READ_MAX = 50_000
"""Characters of a response, or of one expression, that the library is given."""
NESTING_MAX = 200
TAIL_MAX = 4_000
"""The library's search for a number is quadratic (53 s for 25,000 numbers), so the end is searched first."""

_LATEX = LatexExtractionConfig(boxed_match_priority=-1)
_CONFIG = (_LATEX, ExprExtractionConfig())
_FORMULA_CONFIG = (
    replace(_LATEX, normalization_config=replace(_LATEX.normalization_config, units=False)),
    ExprExtractionConfig(),
)
"""Keeps units: the library takes the h of `2\\pi r h` for hours."""
_COMMAND = re.compile(r"\\(?:begin|end)\{[a-zA-Z]+\*?\}|\\[a-zA-Z]+")
_LETTER = re.compile(r"[a-zA-Z]|[^\x00-\x7f]")
_VARIABLE = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm)\s*\{[^{}]*\}")
_OR = re.compile(r"\bor\b|\\cup")


class TooDeep(ValueError):
    """Brackets inside brackets beyond what any answer needs; the parser would take seconds and find nothing."""


@dataclass(frozen=True)
class Reading:
    """One expression, read."""

    text: str
    """As it was written, without box and percent sign."""
    digits: str | None
    """Of a plain integer, for exact comparison at any length; None for anything else."""
    choice: str | None
    """Letter of a multiple choice; None for anything else."""
    is_percent: bool
    parsed: list[Any]
    """What `verify` takes: sympy objects, and strings for what sympy has no word for."""

    def show(self) -> str:
        """Quote it for a reason."""
        return quote(f"{self.text}%" if self.is_percent else self.text)


@contextmanager
def long_integers() -> Iterator[None]:
    """Lift CPython's limit of 4,300 digits, which makes equal integers of 5,000 digits unequal."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(before)


def read_expression(written: str) -> Reading:
    """Read one expression that stands alone: a gold, or what a box holds.

    Errors: TooDeep beyond 200 brackets in each other.
    """
    digits = find_digits(written)
    if digits is not None:
        return Reading(written, digits, None, False, [_to_integer(digits)])
    if find_nesting(written) > NESTING_MAX:
        raise TooDeep(f"brackets are nested more than {NESTING_MAX} deep")
    text, is_percent = split_percent(tidy_latex(written))
    digits = find_digits(text)
    if digits is not None:
        return Reading(text, digits, None, is_percent, [_to_integer(digits)])
    is_formula = len(_VARIABLE.findall(_WORDS.sub("", text))) > 1
    parsed = parse(f"${text}$", _FORMULA_CONFIG if is_formula else _CONFIG, parsing_timeout=None)
    return Reading(text, None, find_choice(written), is_percent, _keep_whole(parsed, text))


def read_prose(response: str) -> Reading | None:
    """Read the answer out of running text, as math-verify finds it: near "answer", then the last that is one.

    Errors: TooDeep beyond 200 brackets in each other.
    """
    if find_nesting(response) > NESTING_MAX:
        raise TooDeep(f"brackets are nested more than {NESTING_MAX} deep")
    for tail in (response[-TAIL_MAX:], response[-READ_MAX:]):
        parsed = parse(tail, _CONFIG, parsing_timeout=None)
        if parsed:
            text = str(parsed[-1])
            return read_expression(f"{text}%" if _is_percent(parsed[0]) else text)
    return None


def _is_percent(item: Any) -> bool:
    # The library writes 25% as 25 times an unevaluated 1/100.
    return isinstance(item, Mul) and any(isinstance(arg, UnevaluatedExpr) for arg in item.args)


def _to_integer(digits: str) -> Integer:
    with long_integers():
        return Integer(int(digits))


def _keep_whole(parsed: list[Any], text: str) -> list[Any]:
    """Drop a number that the library found at the start of something else, and make sets of inequalities."""
    if not parsed or isinstance(parsed[0], str):
        return parsed
    read = next((item for item in parsed if isinstance(item, str)), text)
    is_part = isinstance(parsed[0], Number) and _LETTER.search(_COMMAND.sub("", read)) is not None
    return parsed[1:] if is_part else [_join_inequalities(parsed[0], text), *parsed[1:]]


def _join_inequalities(expr: Any, text: str) -> Any:
    """Turn `x<-1 or x>1`, which the library reads as a set of two truths, into the set of numbers it describes."""
    parts = list(expr.args) if isinstance(expr, FiniteSet) else []
    if len(parts) < 2 or not all(isinstance(part, Relational) and not isinstance(part, Equality) for part in parts):
        return expr
    if len({symbol for part in parts for symbol in part.free_symbols}) != 1:
        return expr
    joined: Set = (Or if _OR.search(text) else And)(*parts).as_set()
    return joined
