"""Instructions that can be counted: does the response keep them?

Gold:   a list of constraints, `{"kind": "words", "min": 50}`; the kinds are in `constraint.py` and in docs/checks.md.
args:   mode: fraction | all (default fraction: kept of asked; all: 1 only when every one is kept).

Judges form alone; an empty response keeps nothing, whatever it leaves out.
"""

from dataclasses import dataclass
from typing import Any, Literal

from retinue.checks.plugin import Score, Unverifiable
from retinue.checks.verifiers.constraint import AnyConstraint, check_constraint, find_complaint
from retinue.checks.verifiers.options import quote, read_options
from retinue.terms.record import DecodeError, Record, from_json, to_json

_TOLD_MAX = 5


class InstructionOptions(Record, frozen=True, forbid_unknown_fields=True):
    """Arguments of `instruction`."""

    mode: Literal["fraction", "all"] = "fraction"


@dataclass(frozen=True)
class InstructionGold:
    """What `prepare` made of gold and arguments."""

    constraints: tuple[AnyConstraint, ...]
    options: InstructionOptions


def prepare(gold: Any, args: dict[str, Any]) -> InstructionGold:
    """Read gold and arguments.

    Errors: Unverifiable names the constraint that is unknown, or that nothing could keep or break.
    """
    options = read_options(args, InstructionOptions)
    items = gold if isinstance(gold, list) else [gold]
    if not items:
        raise Unverifiable("gold is an empty list; give at least one constraint")
    return InstructionGold(tuple(_read_constraint(number, item) for number, item in enumerate(items, 1)), options)


def _read_constraint(number: int, item: Any) -> AnyConstraint:
    try:
        constraint: AnyConstraint = from_json(to_json(item), AnyConstraint)  # type: ignore[arg-type]
    except (DecodeError, TypeError, ValueError) as error:
        raise Unverifiable(f"gold: constraint {number}, {quote(item)}: {error}") from None
    complaint = check_constraint(constraint)
    if complaint:
        raise Unverifiable(f"gold: constraint {number}, {quote(item)}: {complaint}")
    return constraint


def check(response: str, gold: Any, args: dict[str, Any]) -> Score:
    """Count what was asked to be counted."""
    prepared = gold if isinstance(gold, InstructionGold) else prepare(gold, args)
    asked = len(prepared.constraints)
    if not response.strip():
        return 0.0, "the response is empty"
    complaints = [told for one in prepared.constraints if (told := find_complaint(one, response))]
    kept = asked - len(complaints)
    score = float(not complaints) if prepared.options.mode == "all" else kept / asked
    return score, "; ".join([f"{kept} of {asked} kept", *complaints[:_TOLD_MAX]])


def warm() -> None:
    """Run once; nothing here is slow the first time."""
    check("One. Two.", prepare([{"kind": "sentences", "exactly": 2}], {}), {})


check.prepare = prepare  # type: ignore[attr-defined]
check.warm = warm  # type: ignore[attr-defined]
