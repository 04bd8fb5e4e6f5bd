"""What waits to be written: one lane per path, bounded in all. Not thread-safe by itself; `writer.py` locks it.

When it is full, log lines are refused first; decisions have the last quarter to themselves, then
push log lines out, and only then are lost.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

MAX_ENTRIES = 50_000
MAX_BYTES = 64 * 1024 * 1024
BATCH_BYTES = 256 * 1024
LOG_SHARE = 0.75
"""Log lines may fill this much of the bounds; the rest is for decisions."""


class Kind(Enum):
    """What is to be done at a path."""

    LOG = "log"
    """Append; dropped when it cannot be written."""
    LINE = "line"
    """Append whole lines; tried again until it is written."""
    REPLACE = "replace"
    """Replace the file; only the newest counts; tried again."""
    CALL = "call"
    """Run something that blocks; only the newest counts; not tried again."""


@dataclass(slots=True)
class Entry:
    """One thing to write."""

    kind: Kind
    content: bytes
    since_s: float
    mode: int = 0o600
    work: Callable[[], None] | None = None


@dataclass(slots=True)
class Lane:
    """Everything that waits for one path, in order."""

    path: str
    entries: deque[Entry] = field(default_factory=deque)
    retry_s: float = 0.0
    """Nothing is tried before this time."""
    failures: int = 0
    """In a row."""


@dataclass(slots=True)
class Batch:
    """What the thread is writing now: entries of one kind at one path."""

    lane: Lane
    entries: list[Entry]

    @property
    def kind(self) -> Kind:
        return self.entries[0].kind


class Backlog:
    """Lanes, served in turn."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lanes: dict[str, Lane] = {}
        self._entries = 0
        self._bytes = 0
        self.current: Batch | None = None
        self.lost_lines = 0
        self.lost_vital = 0

    @property
    def is_empty(self) -> bool:
        return not self._lanes and self.current is None

    @property
    def oldest_s(self) -> float | None:
        """Since when the oldest entry waits."""
        heads = [lane.entries[0].since_s for lane in self._lanes.values()]
        if self.current is not None:
            heads.append(self.current.entries[0].since_s)
        return min(heads, default=None)

    def add(self, path: str, entry: Entry) -> bool:
        """Take an entry; False when there is no room, and it is counted as lost."""
        if entry.kind in (Kind.REPLACE, Kind.CALL):
            # What it supersedes need not be written any more; that is no loss.
            self._forget_lane(path)
        elif not self._has_room(entry):
            self.lose([entry])
            return False
        self._lanes.setdefault(path, Lane(path)).entries.append(entry)
        self._count(entry, 1)
        return True

    def take(self, now_s: float) -> Batch | None:
        """Begin the next batch that is due; None when there is none."""
        for path, lane in self._lanes.items():
            if lane.retry_s <= now_s:
                # To the end of the row: one busy log does not keep the others waiting.
                self._lanes[path] = self._lanes.pop(path)
                self.current = Batch(lane, self._cut(lane))
                if not lane.entries:
                    del self._lanes[path]
                return self.current
        return None

    def get_next_retry_s(self) -> float | None:
        """Say when the next lane is due; None when nothing waits."""
        return min((lane.retry_s for lane in self._lanes.values()), default=None)

    def finish(self, rest: list[Entry], retry_s: float | None) -> None:
        """End the current batch; `rest` was not written: tried again at `retry_s`, or lost when that is None."""
        batch, self.current = self.current, None
        if batch is None:
            return
        lane = batch.lane
        for entry in batch.entries:
            self._count(entry, -1)
        lane.failures = lane.failures + 1 if rest else 0
        if rest and retry_s is None:
            self.lose(rest)
        if not rest or retry_s is None:
            return
        newer = self._lanes.get(lane.path)
        if newer is not None and newer.entries[0].kind in (Kind.REPLACE, Kind.CALL):
            return  # Replaced meanwhile: the rest is obsolete, not lost.
        lane.entries = deque(rest) + (newer.entries if newer is not None else deque())
        lane.retry_s = retry_s
        self._lanes[lane.path] = lane
        for entry in rest:
            self._count(entry, 1)

    def hurry(self) -> None:
        """Make every lane due now."""
        for lane in self._lanes.values():
            lane.retry_s = 0.0

    def lose(self, entries: list[Entry]) -> None:
        """Count what will not be written."""
        for entry in entries:
            lines = max(1, entry.content.count(b"\n"))
            if entry.kind is Kind.LOG:
                self.lost_lines += lines
            elif entry.kind is Kind.LINE:
                self.lost_vital += lines

    # --- room ---------------------------------------------------------------------

    def _has_room(self, entry: Entry) -> bool:
        share = LOG_SHARE if entry.kind is Kind.LOG else 1.0
        if self._fits(entry, share):
            return True
        if entry.kind is Kind.LOG:
            return False
        self._evict_logs()
        return self._fits(entry, share)

    def _fits(self, entry: Entry, share: float) -> bool:
        return (
            self._entries + 1 <= self._max_entries * share
            and self._bytes + len(entry.content) <= self._max_bytes * share
        )

    def _evict_logs(self) -> None:
        for path, lane in list(self._lanes.items()):
            logs = [entry for entry in lane.entries if entry.kind is Kind.LOG]
            if not logs:
                continue
            lane.entries = deque(entry for entry in lane.entries if entry.kind is not Kind.LOG)
            self.lose(logs)
            for entry in logs:
                self._count(entry, -1)
            if not lane.entries:
                del self._lanes[path]

    def _forget_lane(self, path: str) -> None:
        lane = self._lanes.pop(path, None)
        for entry in lane.entries if lane is not None else ():
            self._count(entry, -1)

    def _count(self, entry: Entry, sign: int) -> None:
        self._entries += sign
        self._bytes += sign * len(entry.content)

    @staticmethod
    def _cut(lane: Lane) -> list[Entry]:
        entries = [lane.entries.popleft()]
        size = len(entries[0].content)
        kind = entries[0].kind
        if kind not in (Kind.LOG, Kind.LINE):
            return entries
        while lane.entries and lane.entries[0].kind is kind and size < BATCH_BYTES:
            entries.append(lane.entries.popleft())
            size += len(entries[-1].content)
        return entries


def drop_bytes(entries: list[Entry], count: int) -> list[Entry]:
    """Return what is left of the entries when this many bytes of them are written."""
    rest = []
    for entry in entries:
        written = min(count, len(entry.content))
        count -= written
        if written < len(entry.content):
            rest.append(Entry(entry.kind, entry.content[written:], entry.since_s))
    return rest
