"""Read the end of a log, and go on reading it across launches."""

from collections.abc import Callable, Iterator
from pathlib import Path

TAIL_BYTES = 256 * 1024
"""As far back as the last lines are looked for."""


def read_tail(path: Path | None, count: int) -> list[str]:
    """Read the last lines of a file; [] when there is none."""
    if path is None or count == 0:
        return []
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-count:]


def follow_file(directory: Path, find_newest: Callable[[Path], Path | None]) -> Iterator[list[str]]:
    """Yield the complete lines that are new since the last time, from whatever launch is the newest; never ends."""
    path = find_newest(directory)
    offset = path.stat().st_size if path is not None else 0
    while True:
        newest = find_newest(directory)
        if newest is None:
            yield []
            continue
        lines: list[str] = []
        if path is not None and newest != path:
            lines, _ = _read_from(path, offset)
            path, offset = newest, 0
        path = newest
        fresh, offset = _read_from(path, offset)
        yield lines + fresh


def _read_from(path: Path, offset: int) -> tuple[list[str], int]:
    with open(path, "rb") as file:
        file.seek(offset)
        text = file.read()
    complete = text[: text.rfind(b"\n") + 1]
    return complete.decode(errors="replace").splitlines(), offset + len(complete)
