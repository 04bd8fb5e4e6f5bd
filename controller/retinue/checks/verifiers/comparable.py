"""Can this gold be compared with an answer at all?

The library reads `100000000!` at once and computes it only when it is compared: that would hang at every
answer, and the policy would be blamed for it. So a gold that might be expensive is compared once with a plain
number, before a response is seen. Never decides whether it *is* expensive: the process is ended from outside.
"""

from collections.abc import Callable, Iterator
from typing import Any

from sympy import (
    Add,
    And,
    Expr,
    Float,
    Integer,
    Interval,
    MatrixBase,
    Mul,
    Number,
    NumberSymbol,
    Or,
    Pow,
    Rational,
    Symbol,
    Tuple,
    UnevaluatedExpr,
    Union,
)
from sympy.core.numbers import ImaginaryUnit
from sympy.core.relational import Relational
from sympy.sets import FiniteSet

PROBE = Integer(1_000_003)
"""Hardly anybody's gold; a prime, so nothing cancels."""
CHEAP_MAX = 64.0
"""Terms after everything was multiplied out; beyond, comparing may be slow."""
_PARTS = (FiniteSet, Tuple, Interval, Union, Relational, And, Or)
_BITS = 64


def try_comparing(parsed: list[Any], compare: Callable[[Any, Any], object]) -> None:
    """Compare each part of a gold that may be expensive with a plain number, as an answer would be.

    Shape:  `parsed` as `verify` takes it; what comes of the comparison does not matter, only that it ends.
    """
    for part in _list_parts(parsed):
        if isinstance(part, Expr) and count_terms(part) > CHEAP_MAX:
            compare(part, PROBE)


def _list_parts(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, MatrixBase):
            yield from _list_parts(item.flat())
        elif isinstance(item, _PARTS):
            yield from _list_parts(item.args)
        else:
            yield item


def count_terms(expr: Any) -> float:
    """Say how large an expression may become: infinite for everything but sums, products and small powers."""
    if isinstance(expr, Number):
        return 1.0 + _count_bits(expr) / _BITS
    if isinstance(expr, Symbol | NumberSymbol | ImaginaryUnit):
        return 1.0
    if isinstance(expr, Pow):
        base, exponent = expr.args
        return count_terms(base) * max(1.0, abs(float(exponent))) if _is_small(exponent) else float("inf")
    if isinstance(expr, Add | Mul | UnevaluatedExpr):
        return sum(count_terms(part) for part in expr.args)
    return float("inf")


def _is_small(exponent: Any) -> bool:
    return isinstance(exponent, Rational) and _count_bits(exponent) < _BITS


def _count_bits(number: Any) -> int:
    if isinstance(number, Rational) and number.is_finite:
        return int(number.p).bit_length() + int(number.q).bit_length()
    return _BITS if isinstance(number, Float) else 0
