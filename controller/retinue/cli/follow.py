"""Read the end of a log, and go on reading it across launches and rotations."""

from collections.abc import Callable
from pathlib import Path

TAIL_BYTES = 256 * 1024
"""As far back as the last lines are looked for."""

FindNewest = Callable[[Path], Path | None]


class Follower:
    """Reads one replica's log: its last lines first, then whatever is new, each line once."""

    def __init__(self, directory: Path, find_newest: FindNewest) -> None:
        self._directory = directory
        self._find_newest = find_newest
        self._path = find_newest(directory)
        self._offset = 0

    def read_tail(self, count: int) -> list[str]:
        """Read the last `count` lines of the newest file; what is read later begins after them."""
        if self._path is None:
            return []
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read()
            self._offset = file.tell()
        return data.decode(errors="replace").splitlines()[-count:] if count else []

    def read_new(self) -> list[str]:
        """Read the complete lines that are new; the rest of an older launch comes before the newest one."""
        newest = self._find_newest(self._directory)
        lines: list[str] = []
        if newest != self._path:
            lines = self._read(is_whole=True)
            self._path, self._offset = newest, 0
        return lines + self._read(is_whole=False)

    def _read(self, is_whole: bool) -> list[str]:
        """Read on; `is_whole`: the file grows no more, its last line may lack its end."""
        if self._path is None:
            return []
        with open(self._path, "rb") as file:
            if file.seek(0, 2) < self._offset:
                # Begun afresh under the same name: the newest half of a flood.
                self._offset = 0
            file.seek(self._offset)
            data = file.read()
        if not is_whole:
            data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return data.decode(errors="replace").splitlines()
