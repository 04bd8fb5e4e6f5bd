"""What can be done with a sandbox's files, each act one function that blocks; run in a thread, see file_lanes.

`root_fd` is the sandbox's "/". Each looks at its `stop` at least once for every file or MiB.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from retinue.sandbox import openat
from retinue.sandbox.file_errors import Reason, refuse, translate
from retinue.sandbox.file_lanes import Stop
from retinue.sandbox.file_records import READ_MAX_BYTES, Entry, build_entry

_PIECE_BYTES = 2**20
_MODE = 0o777
"""No set-id bits from outside: they would mean nothing in the sandbox, and something in a copy of it."""
DIRECTORY_MODE = 0o1777


@contextmanager
def translating(verb: str, path: bytes) -> Iterator[None]:
    """Turn the kernel's errors into ours."""
    try:
        yield
    except OSError as error:
        raise translate(verb, path, error) from None


def read_file(root_fd: int, path: bytes, offset: int, limit: int, stop: Stop) -> bytes:
    """Read from a regular file; shorter than `limit` only at its end."""
    if offset < 0 or not 0 <= limit <= READ_MAX_BYTES:
        raise refuse(Reason.TOO_LARGE, "read", path, f"ask for at most {READ_MAX_BYTES} bytes at once")
    with translating("read", path):
        fd = openat.reopen(openat.find(root_fd, path), os.O_RDONLY)
        try:
            return b"".join(_read_pieces(fd, offset, limit, stop))
        finally:
            os.close(fd)


def _read_pieces(fd: int, offset: int, limit: int, stop: Stop) -> Iterator[bytes]:
    while limit > 0:
        stop.check()
        piece = os.pread(fd, min(limit, _PIECE_BYTES), offset)
        if not piece:
            return
        yield piece
        offset += len(piece)
        limit -= len(piece)


def write_file(
    root_fd: int, path: bytes, content: bytes, mode: int | None, append: bool, parents: bool, stop: Stop
) -> Entry:
    """Write a regular file, over an old one or after it; gives what it is then.

    Shape:  mode None: an old file keeps its own, a new one gets 0644. When the disk is full, what fitted stays.
    """
    if len(content) > READ_MAX_BYTES:
        raise refuse(Reason.TOO_LARGE, "write", path, f"give at most {READ_MAX_BYTES} bytes at once, and append")
    with translating("write", path):
        _, name = openat.split(path)
        if parents:
            make_parents(root_fd, path)
        fd, is_new = openat.open_for_writing(root_fd, path, 0o600)
        try:
            if append:
                os.lseek(fd, 0, os.SEEK_END)
            else:
                os.ftruncate(fd, 0)
            write_all(fd, content, stop)
            if mode is not None or is_new:
                os.fchmod(fd, (0o644 if mode is None else mode) & _MODE)
            return build_entry(name, os.fstat(fd))
        finally:
            os.close(fd)


def write_all(fd: int, content: bytes | memoryview, stop: Stop) -> None:
    """Write it where the descriptor stands. Errors: OSError."""
    left = memoryview(content)
    while left:
        stop.check()
        left = left[os.write(fd, left[:_PIECE_BYTES]) :]


def stat_file(root_fd: int, path: bytes, follow: bool) -> Entry:
    """Say what has a name."""
    with translating("look at", path):
        fd = openat.find(root_fd, path, openat.LOOK | (0 if follow else os.O_NOFOLLOW))
        try:
            status = os.fstat(fd)
            target = os.readlink(b"", dir_fd=fd) if stat.S_ISLNK(status.st_mode) else b""
        finally:
            os.close(fd)
    return build_entry(path.rstrip(b"/").rpartition(b"/")[2] or b"/", status, target)


def list_directory(root_fd: int, path: bytes, limit: int, stop: Stop) -> list[Entry]:
    """List a directory, by name; what is gone before it was looked at is left out."""
    entries: list[Entry] = []
    with translating("list", path):
        fd = openat.find(root_fd, path, openat.LIST)
        try:
            with os.scandir(fd) as found:
                for item in found:
                    stop.check()
                    if len(entries) == limit:
                        raise refuse(Reason.TOO_MANY, "list", path, f"it has more than {limit} entries")
                    entries += _look(fd, os.fsencode(item.name))
        finally:
            os.close(fd)
    return sorted(entries, key=lambda entry: (entry.name, entry.name_base64))


def _look(dir_fd: int, name: bytes) -> list[Entry]:
    try:
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        target = os.readlink(name, dir_fd=dir_fd) if stat.S_ISLNK(status.st_mode) else b""
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL):  # Gone, or no link any more.
            return []
        raise
    return [build_entry(name, status, target)]


def make_directory(root_fd: int, path: bytes, mode: int, parents: bool) -> None:
    """Make a directory; parents: and those above it, and it may be there already."""
    with translating("make directory", path):
        if parents:
            make_parents(root_fd, path)
        try:
            place = openat.find_place(root_fd, path)
            try:
                make_one(place.dir_fd, place.name, mode & DIRECTORY_MODE)
            finally:
                place.close()
        except OSError as error:
            if not parents or error.errno not in (errno.EEXIST, errno.EINVAL):
                raise
            os.close(openat.find(root_fd, path, openat.LOOK | os.O_DIRECTORY))


def make_one(dir_fd: int, name: bytes, mode: int) -> None:
    """Make a directory with exactly this mode, whatever our umask is. Errors: OSError."""
    os.mkdir(name, 0o700, dir_fd=dir_fd)
    fd = openat.open_at(dir_fd, name, openat.LIST | os.O_NOFOLLOW, openat.PLAIN)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def make_parents(root_fd: int, path: bytes) -> None:
    """Make the directories above a path that are missing; links to directories are followed. Errors: OSError."""
    missing: list[bytes] = []
    head, _, _ = path.rstrip(b"/").rpartition(b"/")
    while True:
        try:
            fd = openat.find(root_fd, head + b"/", openat.LOOK | os.O_DIRECTORY)
            break
        except FileNotFoundError:
            head, name = openat.split(head)
            missing.append(name)
    try:
        for name in reversed(missing):
            below_fd = open_or_make(fd, name)
            os.close(fd)
            fd = below_fd
    finally:
        os.close(fd)


def open_or_make(dir_fd: int, name: bytes) -> int:
    """Open a directory by its name, made where it is missing; no link is followed. Errors: OSError."""
    try:
        make_one(dir_fd, name, 0o755)
    except FileExistsError:
        pass
    return openat.open_at(dir_fd, name, openat.LOOK | os.O_DIRECTORY | os.O_NOFOLLOW, openat.PLAIN)
