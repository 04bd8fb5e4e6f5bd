"""Find the logs of a service; read the end of one, and go on reading it across launches and rotations."""

from pathlib import Path

from retinue.errors import UsageError
from retinue.journal.finding import find_attempt
from retinue.journal.life import LifeWatch
from retinue.terms import run as files

OVER = "the run is over"

TAIL_BYTES = 256 * 1024
"""As far back as the last lines are looked for."""


def find_log_dirs(attempt_dir: Path, service: str) -> list[tuple[str, Path]]:
    """Find the log directories of `SERVICE` or `SERVICE/K`."""
    name, _, index = service.partition("/")
    pattern = f"{name}.{index}" if index else f"{name}.*"
    found = sorted((attempt_dir / files.LOGS).glob(pattern), key=lambda path: int(path.suffix[1:] or 0))
    if not found:
        known = sorted({path.stem for path in (attempt_dir / files.LOGS).iterdir()})
        raise UsageError(f'no logs of "{service}"; there are logs of {", ".join(known) or "no service yet"}')
    return [(f"{path.stem}/{path.suffix[1:]}", path) for path in found]


def find_newest(directory: Path) -> Path | None:
    """The log of the highest launch number; of a launch that flooded its log, the part that is written now."""
    parts = [(number, path) for path in directory.glob("launch-*.log") if (number := parse_launch(path)) >= 0]
    newest = max((number for number, _ in parts), default=-1)
    return max((path for number, path in parts if number == newest), key=get_written_ns, default=None)


def parse_launch(path: Path) -> int:
    """`launch-3.log`, `launch-3.tail.0.log` -> 3; -1 for anything else."""
    number = path.name.removeprefix("launch-").partition(".")[0]
    return int(number) if number.isdigit() else -1


def get_written_ns(path: Path) -> tuple[int, bool]:
    """When it was written last; of two at once the tail follows the head."""
    return path.stat().st_mtime_ns, ".tail." in path.name


class Follower:
    """Reads one replica's log: its last lines first, then whatever is new, each line once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = find_newest(directory)
        self._offset = 0

    @property
    def path(self) -> Path | None:
        """The file that is read; None while there is none."""
        return self._path

    def read_tail(self, count: int, back_bytes: int = TAIL_BYTES) -> list[str]:
        """Read the last `count` lines of the newest file; what is read later begins after them."""
        if self._path is None:
            return []
        with open(self._path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - back_bytes))
            data = file.read()
            self._offset = file.tell()
        return data.decode(errors="replace").splitlines()[-count:] if count else []

    def read_new(self) -> list[str]:
        """Read the complete lines that are new; the rest of an older launch comes before the newest one."""
        newest = find_newest(self._directory)
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


class EndWatch:
    """Tells a command that follows an attempt when nothing more will come."""

    def __init__(self, attempt_dir: Path) -> None:
        self._attempt_dir = attempt_dir
        self._life = LifeWatch(attempt_dir.parent)

    def find_end(self) -> str:
        """Say why there is no more to wait for: `OVER`, dead, or a newer attempt; empty while there is."""
        # Before the verdict is looked for: a run that ends in between is over, not dead.
        death = self._life.find_death()
        if (self._attempt_dir / files.VERDICT).exists():
            return OVER
        newest = find_attempt(self._attempt_dir.parent)
        if newest != self._attempt_dir:
            return f"the run goes on in {newest.name}; this one has no verdict"
        return death
