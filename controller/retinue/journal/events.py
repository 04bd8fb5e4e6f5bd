"""The event journal: one line per decision, for people. `events.jsonl`.

A line says what happened, to whom, what changed and why in words. Reading is
tolerant of a half-written last line; nothing is ever read back to decide.
"""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from retinue.terms.record import DecodeError, Record, from_json

REPEATED = 100
"""How many lines back one is looked for that the writer has written twice."""


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


class EventTail:
    """Reads a journal bit by bit: first its end (or all of it), then what is new, each line once."""

    def __init__(self, path: Path, back_bytes: int | None = None) -> None:
        self._path = path
        self._back_bytes = back_bytes
        """How far back the first reading begins; None: at the beginning."""
        self._offset = 0
        self._recent: deque[EventLine] = deque(maxlen=REPEATED)

    def read_new(self) -> list[EventLine]:
        """Read the whole lines that are new; a missing file has none, a broken line is skipped."""
        try:
            data = self._read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for line in _parse_lines(data):
            if line not in self._recent:
                self._recent.append(line)
                found.append(line)
        return found

    def _read_bytes(self) -> bytes:
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            if self._back_bytes is not None:
                self._offset, self._back_bytes = max(0, size - self._back_bytes), None
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole


def read_events(path: Path, since_seq: int = -1) -> list[EventLine]:
    """Read the lines with a higher seq; a missing file is an empty journal, a broken line is skipped.

    A line that is there twice counts once: the writer writes again what a failing file system left in doubt.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return list(dict.fromkeys(line for line in _parse_lines(data) if line.seq > since_seq))


def _parse_lines(data: bytes) -> Iterator[EventLine]:
    for raw in data.split(b"\n"):
        try:
            yield from_json(raw, EventLine)
        except DecodeError:
            continue


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
