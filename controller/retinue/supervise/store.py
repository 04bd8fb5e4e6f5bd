"""What a restarted controller needs, in the batch host's node directory.

One append-only file: a line per change, the last one of a key wins. Written
synchronously and before the act it is about; the node directory is local, so a
hung shared file system does not block it. A kill in the middle of a line costs
that line only, and the act it was about has not happened.
"""

import os
from pathlib import Path
from typing import Any

from retinue.supervise.seat import Seat
from retinue.supervise.state import RunState
from retinue.terms.record import DecodeError, Record, from_json, to_json

COMPACT_BYTES = 4 * 1024 * 1024
"""Start afresh once the file is this long, at the next controller start or save."""


class _Line(Record, frozen=True, omit_defaults=True):
    key: str
    seat: Seat | None = None
    run: RunState | None = None


class StateStore:
    """The file; implements `edges.Store`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._latest: dict[str, bytes] = {}
        self._latest_size = 0
        self._size = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def save(self, key: str, value: Any) -> None:
        line = to_json(_Line(key, run=value) if isinstance(value, RunState) else _Line(key, seat=value)) + b"\n"
        self._keep(key, line)
        self._size += len(line)
        if self._size > COMPACT_BYTES and self._size > 2 * self._latest_size:
            self._compact()
        else:
            os.write(self._fd, line)

    def _keep(self, key: str, line: bytes) -> None:
        self._latest_size += len(line) - len(self._latest.get(key, b""))
        self._latest[key] = line

    def _compact(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", closefd=False) as file:
            file.writelines(self._latest.values())
        fresh.rename(self._path)
        os.close(self._fd)
        self._fd = fd
        self._size = self._latest_size

    def load(self) -> tuple[RunState | None, dict[str, Seat]]:
        """Read what the last controller saved; (None, {}) for the first one."""
        run: RunState | None = None
        seats: dict[str, Seat] = {}
        for raw in self._path.read_bytes().splitlines():
            try:
                line = from_json(raw, _Line)
            except DecodeError:
                continue
            self._keep(line.key, raw + b"\n")
            if line.run is not None:
                run = line.run
            elif line.seat is not None:
                seats[line.seat.replica.id] = line.seat
        self._compact()
        return run, seats

    def close(self) -> None:
        os.close(self._fd)
