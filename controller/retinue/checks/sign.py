"""The host's sign of life in the node directory: when its predecessor was last alive, should that have been killed.

A file of the node's own disk, so that a shared one that hangs cannot make a living host look dead. Its time of
change is the sign. A host that stops in order takes it away.
"""

import os
from pathlib import Path


class Sign:
    """One replica's file; does nothing where no path is known."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.last_utc = None if path is None else _read_time(path)
        """When the predecessor was last alive; None: there was none, or it stopped in order."""

    def give(self) -> None:
        """Say that we live."""
        if self._path is None:
            return
        try:
            os.utime(self._path)
        except FileNotFoundError:
            self._create()
        except OSError:  # A full or vanished node directory costs an entry of the ledger, never a check.
            pass

    def take_away(self) -> None:
        """Say that we end in order."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _create(self) -> None:
        assert self._path is not None
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        except OSError:
            pass


def _read_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
