"""Packs a file or a tree of a sandbox into a tar stream, piece by piece, as it is while it is read.

Links go in as links and are never followed; of everything else only regular files are opened. Each directory is opened
anew from the top, links refused, so two descriptors are enough for any depth, and a tree that is changed meanwhile
changes what is found and never where. What cannot be packed is counted.
"""

import errno
import os
import stat
from collections.abc import Generator

from retinue.sandbox import openat, tar_write
from retinue.sandbox.file_acts import translating
from retinue.sandbox.file_errors import Reason, refuse, show_path, translate
from retinue.sandbox.file_lanes import Stop
from retinue.sandbox.file_records import NAMES_MAX, Downloaded, TransferLimits

STEP_BYTES = 256 * 1024
_STEP_ENTRIES = 1000
"""Entries of which nothing comes do not keep a step going for ever."""
_FIRST_NAMES_MAX = 65536
"""Files with several names that are remembered; beyond it they are packed under each name."""
_PASSED_OVER = frozenset(
    (
        errno.ENOENT,  # Removed meanwhile.
        errno.ELOOP,  # A link has its name now.
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EINVAL,
        errno.ENXIO,
        errno.EACCES,
        errno.EPERM,
        errno.EAGAIN,  # A process in the sandbox holds a lease on it.
        errno.EXDEV,  # Another mount, such as /proc.
        errno.ENAMETOOLONG,  # Too deep for one path.
    )
)


class Packing:
    """One download. Whoever made it closes it; steps and close are one thread's at a time."""

    def __init__(self, root_fd: int, path: bytes, limits: TransferLimits) -> None:
        """root_fd is its own from now on."""
        self._root_fd = root_fd
        self._path = path
        self._limits = limits
        self._top_fd = -1
        self._stop = Stop()
        self._pieces = self._pack()
        self._first_names: dict[tuple[int, int], bytes] = {}
        self._counts = dict.fromkeys(("files", "directories", "links", "bytes", "skipped", "changed"), 0)
        self._skipped_names: list[str] = []
        self._entry_count = 0

    def step(self, stop: Stop) -> tuple[bytes, bool]:
        """Pack more; gives it, and whether that was the last. Errors: FileRefused, FileFailed."""
        self._stop = stop
        made: list[bytes] = []
        made_bytes = 0
        began = self._entry_count
        for piece in self._pieces:
            made.append(piece)
            made_bytes += len(piece)
            if made_bytes >= STEP_BYTES or self._entry_count - began >= _STEP_ENTRIES:
                return b"".join(made), False
        return b"".join(made), True

    def build_result(self) -> Downloaded:
        """Say what was packed."""
        return Downloaded(**self._counts, skipped_names=self._skipped_names)

    def close(self) -> None:
        """Let go of all descriptors."""
        self._pieces.close()
        for fd in (self._top_fd, self._root_fd):
            if fd >= 0:
                os.close(fd)
        self._top_fd = self._root_fd = -1

    def _pack(self) -> Generator[bytes, None, None]:
        with translating("pack", self._path):
            self._top_fd = openat.find(self._root_fd, self._path)
            mode = os.fstat(self._top_fd).st_mode
            if stat.S_ISDIR(mode):
                yield from self._pack_tree()
            else:
                yield from self._pack_one()
            yield tar_write.END

    def _pack_one(self) -> Generator[bytes, None, None]:
        fd = openat.reopen(os.dup(self._top_fd), os.O_RDONLY)
        try:
            yield from self._pack_data(fd, os.fstat(fd), openat.split(self._path)[1])
        finally:
            os.close(fd)

    def _pack_tree(self) -> Generator[bytes, None, None]:
        pending = [b"."]
        while pending:
            path = pending.pop()
            try:
                dir_fd = openat.open_at(self._top_fd, path, openat.LIST | os.O_NOFOLLOW, openat.PLAIN)
            except OSError as error:
                self._pass_over(path[2:], error)
                continue
            try:
                yield from self._pack_directory(dir_fd, path, pending)
            finally:
                os.close(dir_fd)

    def _pack_directory(self, dir_fd: int, path: bytes, pending: list[bytes]) -> Generator[bytes, None, None]:
        prefix = b"" if path == b"." else path[2:] + b"/"
        if prefix:
            status = os.fstat(dir_fd)
            self._counts["directories"] += 1
            yield tar_write.build_header(tar_write.DIRECTORY, prefix, _mode(status), int(status.st_mtime))
        with os.scandir(dir_fd) as found:
            for item in found:
                self._count_entry()
                name = os.fsencode(item.name)
                if item.is_dir(follow_symlinks=False):
                    pending.append(path + b"/" + name)
                    continue
                try:
                    yield from self._pack_entry(dir_fd, name, prefix + name, item)
                except OSError as error:
                    self._pass_over(prefix + name, error)

    def _pack_entry(
        self, dir_fd: int, name: bytes, path: bytes, item: "os.DirEntry[str]"
    ) -> Generator[bytes, None, None]:
        if item.is_symlink():
            link = os.readlink(name, dir_fd=dir_fd)
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            self._counts["links"] += 1
            yield tar_write.build_header(tar_write.SYMLINK, path, 0o777, int(status.st_mtime), link=link)
        elif item.is_file(follow_symlinks=False):
            fd = openat.open_at(dir_fd, name, os.O_RDONLY | os.O_NOFOLLOW | openat.SAFE, openat.PLAIN)
            try:
                yield from self._pack_file(fd, path)
            finally:
                os.close(fd)
        else:
            self._skip(path)
            yield b""

    def _pack_file(self, fd: int, path: bytes) -> Generator[bytes, None, None]:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            self._skip(path)
            return
        key = (status.st_dev, status.st_ino)
        if (first := self._first_names.get(key)) is not None:
            self._counts["links"] += 1
            yield tar_write.build_header(tar_write.HARDLINK, path, _mode(status), int(status.st_mtime), link=first)
            return
        if status.st_nlink > 1 and len(self._first_names) < _FIRST_NAMES_MAX:
            self._first_names[key] = path
        yield from self._pack_data(fd, status, path)

    def _pack_data(self, fd: int, status: os.stat_result, path: bytes) -> Generator[bytes, None, None]:
        """As many bytes as the header says, whatever happens to the file meanwhile."""
        size = status.st_size
        self._counts["bytes"] += size
        if self._counts["bytes"] > self._limits.bytes:
            raise refuse(
                Reason.TOO_LARGE,
                "pack",
                self._path,
                f"more than {self._limits.bytes} bytes with {size} of {show_path(path)}",
            )
        self._counts["files"] += 1
        yield tar_write.build_header(tar_write.FILE, path, _mode(status), int(status.st_mtime), size)
        left = size
        while left:
            self._stop.check()
            piece = self._read(fd, min(left, STEP_BYTES), path)
            if not piece:
                self._counts["changed"] += 1
                break
            left -= len(piece)
            yield piece
        while left:
            self._stop.check()
            yield bytes(min(left, STEP_BYTES))
            left -= min(left, STEP_BYTES)
        yield tar_write.pad(size)

    def _read(self, fd: int, most: int, path: bytes) -> bytes:
        try:
            return os.read(fd, most)
        except OSError as error:
            # The header is out: this entry cannot be left out any more.
            raise translate("read", path, error) from None

    def _count_entry(self) -> None:
        self._stop.check()
        self._entry_count += 1
        if self._entry_count > self._limits.entries:
            raise refuse(Reason.TOO_MANY, "pack", self._path, f"it has more than {self._limits.entries} entries")

    def _pass_over(self, path: bytes, error: OSError) -> None:
        if error.errno not in _PASSED_OVER:
            raise translate("pack", path, error) from None
        self._skip(path)

    def _skip(self, path: bytes) -> None:
        self._counts["skipped"] += 1
        if len(self._skipped_names) < NAMES_MAX:
            self._skipped_names.append(path.decode(errors="backslashreplace"))


def _mode(status: os.stat_result) -> int:
    """Permissions as they are, set-id bits left out: they were another user's decision."""
    return stat.S_IMODE(status.st_mode) & 0o1777
