"""The node directory: private to one run on one node, made at the start, gone at the end.

`controller/` in it belongs to the controller of the batch host and is never
touched. Nothing outside it is ever removed: no symbolic link is followed and no
other file system is entered.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from retinue.errors import PermanentError

CONTROLLER = "controller"
RUN_RECORD = "run.json"
"""In `controller/`; stub and controller are started with its path."""
_LOCK = "outer.lock"
_DEPTH_MAX = 60
"""A tree deeper than this is moved up piece by piece: each level costs a descriptor and stack."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def find_node_dir(env: Mapping[str, str], run_id: str) -> Path:
    """Place of sockets, keys and scratch on one node: `/retinue-<uid>-<run id>` under $SLURM_TMPDIR or /tmp."""
    return Path(env.get("SLURM_TMPDIR") or "/tmp") / f"retinue-{os.getuid()}-{run_id}"


def keep_owner_access() -> None:
    """Give back what a umask takes from the owner: `umask 777` would make every file and socket of a run unusable.

    What is started from here on inherits the rest of it as the caller had it.
    """
    os.umask(os.umask(0o077) & 0o077)


def claim_node_dir(path: Path) -> int:
    """Make the directory (0700) or take over what a dead launch left; returns the lock's descriptor.

    The lock lives as long as a process holds the descriptor: outer process or janitor.
    Errors: PermanentError when it is not ours alone, is not a directory, or another launch lives in it.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise PermanentError(f"cannot create node directory {str(path)!r}: {error.strerror}") from None
    _check_node_dir(path)
    try:
        lock_fd = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PermanentError(f"cannot write to node directory {str(path)!r}: {error.strerror}") from None
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock_fd)
        raise PermanentError(
            f"cannot use node directory {str(path)!r}: another keeper of this run lives in it"
        ) from None
    empty_node_dir(path, spared=(CONTROLLER, _LOCK))
    return lock_fd


def _check_node_dir(path: Path) -> None:
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode):
        raise PermanentError(f"cannot use node directory {str(path)!r}: it is not a directory")
    if facts.st_uid != os.geteuid():
        raise PermanentError(f"cannot use node directory {str(path)!r}: it belongs to uid {facts.st_uid}")
    if stat.S_IMODE(facts.st_mode) & 0o077:
        mode = stat.S_IMODE(facts.st_mode)
        raise PermanentError(f"cannot use node directory {str(path)!r}: its mode is {mode:04o}; 0700 is needed")


def remove_node_dir(path: Path, spared: tuple[str, ...] = (CONTROLLER,)) -> list[str]:
    """Remove all but `controller/`, and the directory itself when that leaves it empty; returns what would not go."""
    left = empty_node_dir(path, spared)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            left.append(f"{path}: {error.strerror}")
    return left


def empty_node_dir(path: Path, spared: tuple[str, ...]) -> list[str]:
    """Remove everything in the directory but these names; returns what would not go, with the cause."""
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError as error:
        return [] if error.errno == errno.ENOENT else [f"{path}: {error.strerror}"]
    try:
        sweep = _Sweep(fd, str(path))
        return sweep.run(spared)
    finally:
        os.close(fd)


class _Sweep:
    """One removal of all that a directory holds."""

    def __init__(self, top_fd: int, top: str) -> None:
        self._top_fd = top_fd
        self._top = top
        self._device = os.fstat(top_fd).st_dev
        self._left: dict[str, str] = {}
        self._moved_count = 0

    def run(self, spared: tuple[str, ...]) -> list[str]:
        while True:
            moved_before = self._moved_count
            self._left.clear()
            self._empty(self._top_fd, self._top, 0, spared)
            if self._moved_count == moved_before:
                return [f"{path}: {cause}" for path, cause in self._left.items()]

    def _empty(self, fd: int, path: str, depth: int, spared: tuple[str, ...] = ()) -> None:
        for name in os.listdir(fd):
            if name in spared:
                continue
            try:
                self._remove(fd, name, f"{path}/{name}", depth)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._left[f"{path}/{name}"] = error.strerror or str(error)

    def _remove(self, parent_fd: int, name: str, path: str, depth: int) -> None:
        facts = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        if facts.st_dev != self._device:
            self._left[path] = "another file system is mounted there"
            return
        if not stat.S_ISDIR(facts.st_mode):
            os.unlink(name, dir_fd=parent_fd)
            return
        if facts.st_mode & 0o700 != 0o700:  # An overlay's work directory has mode 0000.
            os.chmod(name, 0o700, dir_fd=parent_fd)
        if depth >= _DEPTH_MAX:
            self._moved_count += 1
            os.rename(name, f".deep-{self._moved_count}", src_dir_fd=parent_fd, dst_dir_fd=self._top_fd)
            return
        fd = os.open(name, _DIRECTORY, dir_fd=parent_fd)
        try:
            self._empty(fd, path, depth + 1)
        finally:
            os.close(fd)
        if not any(left.startswith(path + "/") for left in self._left):
            os.rmdir(name, dir_fd=parent_fd)
