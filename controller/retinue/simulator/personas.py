"""Who is played: JSON lines, checked whole before anything starts. Pure, and says no goal in any error."""

import re
from collections.abc import Mapping, Sequence

from retinue.terms.record import DecodeError, Record, from_json

ANY = "any"
"""The model's name of a request that leaves it to the seed whom it meets."""
ID = re.compile(r"[\w.@-]{1,100}")
TEXT_CHARS_MAX = 20_000
PROBLEMS_MAX = 20
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


class Persona(Record, frozen=True, forbid_unknown_fields=True):
    """One person."""

    id: str
    persona: str
    """Who they are and how they talk."""
    goal: str
    """What they want; only the model reads it."""
    opening: str = ""
    """Their first message, word for word; empty: the model's."""
    turns_max: int | None = None
    """Messages of theirs at most; None: the service's."""
    turns_min: int = 2
    """A stop with an earlier message of theirs is too early."""
    never_says: list[str] = []
    """What gives the role away when it is in a message, in any case of letters."""


class BadPersonas(ValueError):
    """The file cannot be used; one line per problem, with its line number."""


def parse_personas(data: bytes) -> dict[str, Persona]:
    """Parse JSON lines.

    Shape:  by id, in the order of the file; empty lines are skipped.
    Errors: BadPersonas with all problems.
    """
    found: dict[str, Persona] = {}
    lines: dict[str, int] = {}
    problems = []
    for number, row in enumerate(data.split(b"\n"), 1):
        if not row.strip():
            continue
        try:
            persona = _parse_row(row)
            if persona.id in found:
                raise ValueError(f"id {persona.id!r} is in line {lines[persona.id]} already")
        except (ValueError, RecursionError) as error:
            problems.append(f"line {number}: {_word(error)}")
            continue
        found[persona.id], lines[persona.id] = persona, number
    if not found and not problems:
        problems = ["there is no persona in it"]
    if problems:
        more = len(problems) - PROBLEMS_MAX
        raise BadPersonas("\n".join(problems[:PROBLEMS_MAX] + ([f"and {more} more"] if more > 0 else [])))
    return found


def choose_persona(personas: Mapping[str, Persona], persona: str, model: str, seed: int) -> Persona | None:
    """Choose who is met: by `persona`, else by `model`, else by the seed; None when there is nobody of that name."""
    name = persona or (model if model != ANY else "")
    if name:
        return personas.get(name)
    order: Sequence[Persona] = list(personas.values())
    return order[seed % len(order)]


def _parse_row(row: bytes) -> Persona:
    persona = from_json(row.decode("utf-8"), Persona)
    if not ID.fullmatch(persona.id) or persona.id == ANY:
        raise ValueError(f"id is letters, digits and . _ @ -, at most 100, and not {ANY!r}")
    for name, text in (("persona", persona.persona), ("goal", persona.goal)):
        if not text.strip():
            raise ValueError(f"{name} is empty")
    texts = (persona.persona, persona.goal, persona.opening, *persona.never_says)
    if max(map(len, texts)) > TEXT_CHARS_MAX:
        raise ValueError(f"a text is longer than {TEXT_CHARS_MAX} characters")
    if not all(phrase.strip() for phrase in persona.never_says):
        raise ValueError("never_says has an empty phrase, which is in every message")
    if persona.turns_min < 1:
        raise ValueError(f"turns_min is {persona.turns_min}; it is at least 1")
    if persona.turns_max is not None and persona.turns_max < persona.turns_min:
        raise ValueError(f"turns_max is {persona.turns_max}, less than turns_min {persona.turns_min}")
    return persona


def _word(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start + 1} of it is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, DecodeError):
        # A field's name may be a slip of what belongs into it: no more of it than a name has.
        unknown = _UNKNOWN_FIELD.match(str(error))
        if unknown:
            known = ", ".join(Persona.__struct_fields__)
            named = f" {unknown[1]!r}" if ID.fullmatch(unknown[1]) else ""
            return f"there is no field{named}; there are {known}"
    return str(error)
