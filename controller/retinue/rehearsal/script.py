"""What it says: the first line of the script that matches, else something made up of the form that is asked for."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.terms.record import DecodeError, Record, from_json

MADE_UP = "This answer was rehearsed."
DEPTH_MAX = 32


class Call(Record, frozen=True):
    """A tool that it calls."""

    name: str
    arguments: dict[str, Any] = {}


class Line(Record, frozen=True, forbid_unknown_fields=True):
    """One line of a script."""

    reply: Any = MADE_UP
    """Text; anything else is sent as JSON."""
    match: str = ""
    """Regular expression that the last message holds. Empty: any."""
    turn: int | None = None
    """Only when so many messages of the assistant came before: 0 is its first. None: any."""
    times: int | None = None
    """So many times; None: always."""
    calls: tuple[Call, ...] = ()
    finish_reason: str = "stop"


def parse_script(text: str) -> list[Line]:
    """Parse JSON lines.

    Errors: ValueError names the line.
    """
    lines = []
    for number, row in enumerate(text.splitlines(), 1):
        if not row.strip():
            continue
        try:
            line = from_json(row, Line)
            re.compile(line.match)
        except (DecodeError, re.error) as error:
            raise ValueError(f"line {number} of the script: {error}") from None
        lines.append(line)
    return lines


class Script:
    """The lines, and how often each was said."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._said = [0] * len(lines)

    def choose(self, messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None) -> Line:
        """Choose what to say."""
        last = str(messages[-1].get("content") or "") if messages else ""
        turn = sum(message.get("role") == "assistant" for message in messages)
        for index, line in enumerate(self._lines):
            is_over = line.times is not None and self._said[index] >= line.times
            if is_over or line.turn not in (None, turn) or not re.search(line.match, last):
                continue
            self._said[index] += 1
            return line
        return Line() if schema is None else Line(reply=json.dumps(make_up(schema)))


def make_up(schema: Any, depth: int = 0) -> Any:
    """Make up the plainest value that fits a JSON Schema."""
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        return MADE_UP
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else schema["enum"][0]
    if schema.get("anyOf"):
        return make_up(schema["anyOf"][0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind if isinstance(kind, str) else kind[0]
    match kind:
        case "object":
            wanted = schema.get("required", list(schema.get("properties", {})))
            return {name: make_up(schema.get("properties", {}).get(name, {}), depth + 1) for name in wanted}
        case "array":
            return [make_up(schema.get("items", {}), depth + 1)] * int(schema.get("minItems", 0))
        case "integer" | "number":
            return max(0, schema.get("minimum", 0))
        case "boolean":
            return False
        case "null":
            return None
    return (MADE_UP + " " * int(schema.get("minLength", 0)))[: int(schema.get("maxLength", len(MADE_UP)))]
