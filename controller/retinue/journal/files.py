"""Writing files that other nodes read: appended without gaps, replaced in one step. Blocking; for the writer thread.

Never leaves half a file under the real name, and never makes more than the two innermost missing
directories: a run directory that somebody removed stays removed.
"""

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable

OPEN_LIMIT = 64
OPEN_S = 1.0
"""On NFS closing a file shows its lines to other nodes and reports a full disk, so none stays open longer."""

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class AppendFiles:
    """Files that are open for appending: few, and none for long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Path -> (descriptor, opened at); the least recently used is first."""

    @property
    def is_any_open(self) -> bool:
        return bool(self._open)

    def append(self, path: str, content: bytes) -> tuple[int, OSError | None]:
        """Append; returns how many bytes went in, and why not all."""
        try:
            descriptor = self._find(path)
        except OSError as error:
            return 0, error
        count, failure = write_some(descriptor, content)
        if failure is not None:
            # A stale handle or a directory that was removed: the next attempt opens afresh.
            self.forget(path)
        return count, failure

    def forget(self, path: str) -> OSError | None:
        """Close a file, if it is open; returns what closing said."""
        entry = self._open.pop(path, None)
        return _close(entry[0]) if entry is not None else None

    def close_old(self) -> OSError | None:
        """Close what has been open long enough; returns the last error."""
        limit_s = self._clock() - OPEN_S
        old = [path for path, (_, opened_s) in self._open.items() if opened_s <= limit_s]
        return self._close_all(old)

    def close(self) -> OSError | None:
        """Close everything; returns the last error."""
        return self._close_all(list(self._open))

    def _close_all(self, paths: list[str]) -> OSError | None:
        errors = [error for error in map(self.forget, paths) if error is not None]
        return errors[-1] if errors else None

    def _find(self, path: str) -> int:
        entry = self._open.get(path)
        if entry is not None:
            self._open.move_to_end(path)
            return entry[0]
        while len(self._open) >= OPEN_LIMIT:
            self.forget(next(iter(self._open)))
        descriptor = open_log(path)
        self._open[path] = (descriptor, self._clock())
        return descriptor


def open_log(path: str) -> int:
    """Open a log for appending, 0600; makes at most its directory and the one above it."""
    try:
        return os.open(path, _APPEND, 0o600)
    except FileNotFoundError:
        directory = os.path.dirname(path)
        if not os.path.isdir(os.path.dirname(directory)):
            os.mkdir(os.path.dirname(directory), 0o700)
        os.makedirs(directory, 0o700, exist_ok=True)
        return os.open(path, _APPEND, 0o600)


def append_whole_lines(path: str, content: bytes, is_first: bool) -> tuple[int, OSError | None]:
    """Append to a file of lines and close it; returns how many bytes are safe, and why not all.

    `is_first` is this process's first write: half a line that a dead one left is ended before.
    """
    try:
        descriptor = os.open(path, _APPEND, 0o600)
    except OSError as error:
        return 0, error
    if is_first and _ends_in_half_a_line(path, descriptor):
        _, failure = write_some(descriptor, b"\n")
        if failure is not None:
            _close(descriptor)
            return 0, failure
    count, failure = write_some(descriptor, content)
    closing = _close(descriptor)
    if failure is None and closing is not None:
        # Nobody can say what is on the disk; written again, readers drop the line they have seen.
        return 0, closing
    return count, failure


def replace_file(path: str, content: bytes, mode: int) -> None:
    """Put a new file in the place of an older one: readers see either, whole.

    Errors: OSError; nothing of the new file is left, the older one stands.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.uname().nodename}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        _, error = write_some(descriptor, content)
        closing = _close(descriptor)
        if error is not None or closing is not None:
            raise error or closing or OSError(f"cannot write {temporary}")
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def write_some(descriptor: int, content: bytes) -> tuple[int, OSError | None]:
    """Write as much as goes; returns how many bytes that was, and why not all."""
    view = memoryview(content)
    count = 0
    while count < len(view):
        try:
            count += os.write(descriptor, view[count:])
        except OSError as error:
            return count, error
    return count, None


def _ends_in_half_a_line(path: str, descriptor: int) -> bool:
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size == 0:
        return False
    with open(path, "rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"


def _close(descriptor: int) -> OSError | None:
    try:
        os.close(descriptor)
    except OSError as error:
        return error
    return None
