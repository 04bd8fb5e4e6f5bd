"""The one directory that the trials need on a disk: always removed, at the latest by the next doctor.

A doctor that is killed outright cannot tidy up. Its directory is not locked any more, and whoever comes next sees that.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "retinue-doctor-"
FRESH_S = 60.0
"""Younger ones may be about to be locked."""


@contextmanager
def open_directory(parent: str) -> Iterator[Path | None]:
    """Make a directory there, and remove it with all that a trial left in it; None when it cannot be made."""
    if not parent:
        yield None
        return
    remove_left(parent)
    try:
        name = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getuid()}-", dir=parent)
    except OSError:
        yield None
        return
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks: younger than FRESH_S is all that protects it
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield Path(name)
    finally:
        _remove(name)
        os.close(fd)


def remove_left(parent: str) -> None:
    """Remove what doctors of this user left there that were killed."""
    for path in Path(parent).glob(f"{PREFIX}{os.getuid()}-*"):
        with suppress(OSError):
            found = path.lstat()
            is_ours = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)
            if is_ours and time.time() - found.st_mtime > FRESH_S:
                _remove_unless_locked(path)


def _remove_unless_locked(path: Path) -> None:
    """Errors: OSError when a living doctor holds it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(str(path))
    finally:
        os.close(fd)


def _remove(name: str) -> None:
    """An overlay leaves a directory of mode 0 in its work directory."""
    for place, directories, _ in os.walk(name):
        for directory in directories:
            path = os.path.join(place, directory)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)
    shutil.rmtree(name, ignore_errors=True)
