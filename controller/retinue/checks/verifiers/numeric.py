r"""A number: is the last number of the response near enough to the gold?

Gold:   a number, text that is one (`"3/4"`, `"1.5e-3"`, `"50%"`), or a list of acceptable ones.
args:   extract: last | first | boxed (default last); relative, absolute: tolerances, the larger one counts
        (default: whole numbers exactly, others relative 1e-9); percent: either | fraction | ignore (default either);
        units: true lets a unit follow directly and ignores it (`12km`, `5 m^2`); point: "," for `1.234,56`.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from retinue.checks.plugin import Score, Unverifiable
from retinue.checks.verifiers.extract import Unclosed, find_boxed
from retinue.checks.verifiers.number import OutOfRange, Quantity, find_numbers, read_number
from retinue.checks.verifiers.options import quote, read_options
from retinue.terms.record import Record

_DEFAULT_RELATIVE = Fraction(1, 10**9)
_SEARCHED_MAX = 50_000
"""Characters at the end (or, for `first`, at the start) of a response that are searched for numbers."""


class NumericOptions(Record, frozen=True, forbid_unknown_fields=True):
    """Arguments of `numeric`."""

    extract: Literal["last", "first", "boxed"] = "last"
    relative: float | None = None
    absolute: float | None = None
    percent: Literal["either", "fraction", "ignore"] = "either"
    units: bool = False
    point: Literal[".", ","] = "."


@dataclass(frozen=True)
class NumericGold:
    """What `prepare` made of gold and arguments."""

    quantities: tuple[Quantity, ...]
    options: NumericOptions


def prepare(gold: Any, args: dict[str, Any]) -> NumericGold:
    """Read gold and arguments.

    Errors: Unverifiable for a gold that is not exactly one number.
    """
    options = read_options(args, NumericOptions)
    for name, tolerance in (("relative", options.relative), ("absolute", options.absolute)):
        if tolerance is not None and not 0 <= tolerance < float("inf"):
            raise Unverifiable(f"args: {name} is {tolerance}; a tolerance is 0 or more")
    golds = gold if isinstance(gold, list) else [gold]
    if not golds:
        raise Unverifiable("gold is an empty list; give at least one number")
    return NumericGold(tuple(_read_gold(one, options) for one in golds), options)


def _read_gold(gold: Any, options: NumericOptions) -> Quantity:
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise Unverifiable(f"gold {quote(gold)} is a {type(gold).__name__}; give a number, or text that is one")
    # A number of JSON has a point whatever the dataset's language is.
    point = options.point if isinstance(gold, str) else "."
    try:
        text = str(gold).strip()
    except ValueError:
        raise Unverifiable("gold has more than 4,300 digits; `math` compares such numbers") from None
    found = find_numbers(text, point, options.units)
    if len(found) != 1 or len(found[0].group().strip()) != len(text):
        raise Unverifiable(f"gold {quote(text)} is not a number")
    try:
        return read_number(found[0])
    except OutOfRange as error:
        raise Unverifiable(f"gold {quote(text)}: {error}") from None


def check(response: str, gold: Any, args: dict[str, Any]) -> Score:
    """Compare one number of the response with the gold."""
    prepared = gold if isinstance(gold, NumericGold) else prepare(gold, args)
    try:
        found = _find_number(response, prepared.options)
    except (Unclosed, OutOfRange) as error:
        return 0.0, str(error)
    if found is None:
        return 0.0, r"no number in the box" if prepared.options.extract == "boxed" else "no number in the response"
    for quantity in prepared.quantities:
        if _is_near(quantity, found, prepared.options):
            return 1.0, f"{quote(found.text)} is {quote(quantity.text)}"
    return 0.0, f"{quote(found.text)} is not {' or '.join(quote(one.text) for one in prepared.quantities[:3])}"


def _find_number(response: str, options: NumericOptions) -> Quantity | None:
    text = response[:_SEARCHED_MAX] if options.extract == "first" else response[-_SEARCHED_MAX:]
    if options.extract == "boxed":
        text = (find_boxed(response) or [""])[-1][-_SEARCHED_MAX:]
    found = find_numbers(text, options.point, options.units)
    if not found:
        return None
    return read_number(found[0] if options.extract == "first" else found[-1])


def _is_near(gold: Quantity, found: Quantity, options: NumericOptions) -> bool:
    if gold.is_percent == found.is_percent:
        return _is_within(gold.value, found.value, gold.is_integer and found.is_integer, options)
    pairs = []
    if options.percent != "fraction":
        pairs.append((gold.value, found.value))
    if options.percent != "ignore":
        pairs.append((gold.value / (100 if gold.is_percent else 1), found.value / (100 if found.is_percent else 1)))
    return any(_is_within(one, other, False, options) for one, other in pairs)


def _is_within(gold: Fraction, found: Fraction, is_exact: bool, options: NumericOptions) -> bool:
    if options.relative is None and options.absolute is None:
        return gold == found if is_exact else abs(found - gold) <= _DEFAULT_RELATIVE * abs(gold)
    relative = Fraction(options.relative or 0) * abs(gold)
    return abs(found - gold) <= max(relative, Fraction(options.absolute or 0))


def warm() -> None:
    """Run once; nothing here is slow the first time."""
    check("so 3/4", prepare("0.75", {}), {})


check.prepare = prepare  # type: ignore[attr-defined]
check.warm = warm  # type: ignore[attr-defined]
