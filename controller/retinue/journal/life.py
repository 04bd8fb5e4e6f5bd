"""Whether a run lives, told from its directory alone, by any host that shares it.

A process is asked for only where its pid means it: on the owner's own host and in its pid namespace. Elsewhere the
lock's time stamp tells, which a living run refreshes every 10 s. Stamps are compared with each other, by the file
system's clock, never with this host's: clocks of two hosts may differ by more than any limit here.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from retinue.journal.lock import STALE_S, Owner, is_owner_alive, look
from retinue.terms import run as files

DEAD = "the run is dead: its stub is gone and left no verdict; `retinue sweep` ends what it left on its host"
LOOK_S = 2.0
"""Rest between two looks at a lock: commands that follow a run poll more often than a file server likes."""


def read_file_clock_s(directory: Path) -> float | None:
    """Read what the file system of a directory takes for now; None where it takes no new file (full, read-only)."""
    path = directory / f".clock.{os.uname().nodename}.{os.getpid()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        # The same act by which locks are refreshed: on NFS both are stamped by the server.
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime_ns / 1e9
    except OSError:
        return None
    finally:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(path)


class AgeWatch:
    """How long ago a file was written.

    The first look asks the file system's clock (this host's, where it takes no new file); later ones go by what has
    changed under our eyes, and cost one open.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self.stamp: tuple[int, int] | None = None
        """(inode, mtime in ns) at the last look."""
        self._written_s = 0.0
        """When, by our own clock."""

    def measure_s(self) -> float:
        """Measure the age in seconds.

        Errors: OSError when the file cannot be opened.
        """
        # Opening, not stat: NFS may serve attributes from a cache for a minute, but asks the server on open.
        with open(self._path, "rb") as stream:
            facts = os.fstat(stream.fileno())
        stamp = (facts.st_ino, facts.st_mtime_ns)
        if self.stamp is None:
            now_s = read_file_clock_s(self._path.parent)
            age_s = (time.time() if now_s is None else now_s) - facts.st_mtime_ns / 1e9
            self._written_s = self._clock() - max(0.0, age_s)
        elif stamp != self.stamp:
            self._written_s = self._clock()
        self.stamp = stamp
        return self._clock() - self._written_s


def measure_age_s(path: Path) -> float:
    """Measure how long ago a file was written, with one look."""
    return AgeWatch(path).measure_s()


class LifeWatch:
    """Looks again and again whether a run without a verdict will ever have one."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._due_s = clock()
        self._stamp: tuple[int, int] | None = None
        self._refreshed_s = 0.0
        """By our own clock."""
        self._said = ""

    def find_death(self) -> str:
        """Say why the run is dead; empty while it lives, and where nobody can say."""
        if self._clock() >= self._due_s:
            self._due_s = self._clock() + LOOK_S
            self._said = self._look()
        return self._said

    def _look(self) -> str:
        try:
            seen = look(self._run_dir / files.LOCK)
        except OSError:
            return ""
        if seen is None:
            return DEAD if self._run_dir.is_dir() else ""
        is_alive = is_owner_alive(seen.owner)
        if is_alive is not None:
            return "" if is_alive else DEAD
        silent_s = self._measure_silence_s(seen.stamp)
        return describe_silence(seen.owner, silent_s) if silent_s >= STALE_S else ""

    def _measure_silence_s(self, stamp: tuple[int, int]) -> float:
        if self._stamp is None:
            now_s = read_file_clock_s(self._run_dir)
            # Without that clock silence is counted from now on.
            self._refreshed_s = self._clock() - (0.0 if now_s is None else max(0.0, now_s - stamp[1] / 1e9))
        elif stamp != self._stamp:
            self._refreshed_s = self._clock()
        self._stamp = stamp
        return self._clock() - self._refreshed_s


def find_death(run_dir: Path) -> str:
    """Say, with one look, why a run without a verdict will never have one; empty while it lives or nobody can say."""
    return LifeWatch(run_dir).find_death()


def describe_silence(owner: Owner, silent_s: float) -> str:
    """Say that a run on another host gave no sign of life for too long."""
    return (
        f"the run is dead, as far as this host can tell: on {owner.host} (pid {owner.pid}) it has not refreshed its "
        f"lock for {silent_s:.0f} s and left no verdict; `retinue sweep` on {owner.host} ends what it left there"
    )
