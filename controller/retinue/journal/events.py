"""The event journal: one line per decision, for people. `events.jsonl`.

A line says what happened, to whom, what changed and why in words. Reading is
tolerant of a half-written last line; nothing is ever read back to decide.
"""

import time
from pathlib import Path

from retinue.terms.record import DecodeError, Record, from_json


class EventLine(Record, frozen=True, omit_defaults=True):
    """One line."""

    seq: int
    """Counts up within one attempt, across controller restarts."""
    t_utc: float
    subject: str
    """`judge/0`, a node, `trainer`, or `run`."""
    event: str
    """`Exited`, `NodeLost`, `StopBegun`, ...: past tense."""
    reason: str
    before: str = ""
    """Phase before; empty when no phase changed hands."""
    after: str = ""
    detail: str = ""
    """Last log lines and the like; kept apart from the reason."""


def read_events(path: Path, since_seq: int = -1) -> list[EventLine]:
    """Read the lines with a higher seq; a missing file is an empty journal, a broken line is skipped.

    A line that is there twice counts once: the writer writes again what a failing file system left in doubt.
    """
    try:
        raw_lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    lines: dict[EventLine, None] = {}
    for raw in raw_lines:
        try:
            line = from_json(raw, EventLine)
        except DecodeError:
            continue
        if line.seq > since_seq:
            lines[line] = None
    return list(lines)


def render_event(line: EventLine) -> str:
    """Print one line for people: time, who, what, change, why."""
    clock = time.strftime("%H:%M:%S", time.localtime(line.t_utc))
    change = f" {line.before} -> {line.after}" if line.after and line.after != line.before else ""
    text = escape_controls(f"{clock}  {line.subject:<14} {line.event}{change}: {line.reason}")
    if not line.detail:
        return text
    return text + "".join(f"\n{'':26}| {escape_controls(row)}" for row in line.detail.splitlines())


def escape_controls(text: str) -> str:
    """Make what a service printed harmless to a terminal: its control characters become visible."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
