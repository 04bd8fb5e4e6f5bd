"""The directory of a sandbox that an archive is unpacked into, and what is made below it.

Every name is resolved by the kernel below one descriptor: links are followed as long as they stay below it, whoever
made them and when. What has a name already is replaced, never written through.
"""

import errno
import os
from collections.abc import Callable

from retinue.sandbox import openat
from retinue.sandbox.file_acts import make_parents, open_or_make
from retinue.sandbox.file_lanes import Stop

_TRIES = 16
"""How often something that gets a name before us is removed again."""
_LATE_MAX = 65536
"""Directories whose mode and time wait for the end; beyond it the oldest get theirs at once."""
_LOOK = openat.LOOK | os.O_DIRECTORY
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | openat.SAFE


class Target:
    """Made and used by one thread at a time. Paths are relative and clean. Everything raises OSError."""

    def __init__(self, root_fd: int, path: bytes) -> None:
        """Make the directory where it is missing."""
        make_parents(root_fd, path.rstrip(b"/") + b"/.")
        self._fd = openat.find(root_fd, path, _LOOK)
        is_root = os.path.samestat(os.fstat(self._fd), os.fstat(root_fd))
        # Below "/" an absolute link leads where it leads inside; below another directory it leads out.
        self._resolve = openat.IN_ROOT | openat.NO_MAGICLINKS | openat.NO_XDEV if is_root else openat.BELOW
        self._parent: tuple[bytes, int] | None = None
        """The directory of the last entry, held open: most have the same."""
        self._late: dict[bytes, tuple[int, int]] = {}
        """Directories that we made: mode and time that they get at the end."""

    def close(self) -> None:
        """Let go of all descriptors."""
        self._forget_parent()
        os.close(self._fd)

    def make_file(self, path: bytes) -> int:
        """Make an empty file that only its owner may use so far; gives its descriptor, for writing."""
        return self._replace(
            path, lambda place: openat.open_at(place.dir_fd, place.name, _NEW_FILE, openat.PLAIN, 0o600)
        )

    def make_symlink(self, path: bytes, link: bytes, mtime_ns: int) -> None:
        """Make a link; what it says is nobody's business."""

        def make(place: openat.Place) -> int:
            os.symlink(link, place.name, dir_fd=place.dir_fd)
            os.utime(place.name, ns=(mtime_ns, mtime_ns), dir_fd=place.dir_fd, follow_symlinks=False)
            return 0

        self._replace(path, make)
        self._forget_parent()

    def make_hard_link(self, path: bytes, first: bytes) -> None:
        """Give a file below the target another name; a link is linked to, not followed."""
        if path == first:
            return
        head, _, first_name = first.rpartition(b"/")
        first_fd = openat.open_at(self._fd, head or b".", _LOOK, self._resolve)

        def make(place: openat.Place) -> int:
            os.link(first_name, place.name, src_dir_fd=first_fd, dst_dir_fd=place.dir_fd, follow_symlinks=False)
            return 0

        try:
            self._replace(path, make)
        finally:
            os.close(first_fd)

    def make_directory(self, path: bytes, mode: int, mtime_ns: int, stop: Stop) -> None:
        """Make a directory; one that is there keeps mode and time: whoever made it has decided on them."""
        for _ in range(_TRIES):
            place = self._find_place(path)
            try:
                os.mkdir(place.name, 0o700, dir_fd=place.dir_fd)
                self._late[path] = mode, mtime_ns
                break
            except FileExistsError:
                if self._is_directory(path):
                    if path in self._late:
                        self._late[path] = mode, mtime_ns
                    return
                self._make_way(place)
        else:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if len(self._late) > _LATE_MAX:
            self.finish_directories(stop, _LATE_MAX // 2)

    def remove_file(self, path: bytes) -> None:
        """Remove a file that was made, or what has its name by now; not if that is a directory."""
        try:
            place = self._find_place(path)
            os.unlink(place.name, dir_fd=place.dir_fd)
        except OSError:
            pass

    def finish_directories(self, stop: Stop, count: int | None = None) -> None:
        """Give the first so many directories mode and time, the deepest first."""
        for path in reversed(list(self._late)[:count]):
            stop.check()
            mode, mtime_ns = self._late.pop(path)
            try:
                fd = openat.open_at(self._fd, path, openat.LIST | os.O_NOFOLLOW, self._resolve)
            except OSError:
                continue  # Moved or replaced meanwhile: no longer ours.
            try:
                os.fchmod(fd, mode)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)

    def _find_place(self, path: bytes) -> openat.Place:
        """Find the directory that an entry goes into, made where it is missing; it stays ours to close."""
        head, _, name = path.rpartition(b"/")
        if self._parent is None or self._parent[0] != head:
            self._forget_parent()
            self._parent = head, self._open_directory(head)
        return openat.Place(self._parent[1], name)

    def _open_directory(self, path: bytes) -> int:
        parts = path.split(b"/") if path else []
        fd, found_count = self._open_deepest(parts)
        try:
            for name in parts[found_count:]:
                below_fd = open_or_make(fd, name)
                os.close(fd)
                fd = below_fd
        except OSError:
            os.close(fd)
            raise
        return fd

    def _open_deepest(self, parts: list[bytes]) -> tuple[int, int]:
        """Open as much of a path as there is; gives how many parts that are.

        Halves what is left to try: one by one, a path of 2,000 parts would cost the kernel two million look-ups.
        """
        least, most = 0, len(parts)
        tried = most
        while True:
            try:
                fd = openat.open_at(self._fd, b"/".join(parts[:tried]) or b".", _LOOK, self._resolve)
            except FileNotFoundError:
                if not tried:
                    raise
                most = tried - 1
            else:
                if tried == most:
                    return fd, tried
                os.close(fd)
                least = tried
            least = min(least, most)  # What was there may be gone by now.
            tried = (least + most + 1) // 2

    def _forget_parent(self) -> None:
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def _is_directory(self, path: bytes) -> bool:
        try:
            fd = openat.open_at(self._fd, path, _LOOK, self._resolve)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ENOENT, errno.ELOOP):
                return False
            raise
        os.close(fd)
        return True

    def _replace(self, path: bytes, make: Callable[[openat.Place], int]) -> int:
        """Make something under a name, in place of what has it."""
        last: OSError | None = None
        for _ in range(_TRIES):
            place = self._find_place(path)
            try:
                return make(place)
            except FileExistsError:
                self._make_way(place)
            except FileNotFoundError as error:
                # The directory that we hold may have been removed; another may have its name.
                last = error
                self._forget_parent()
        raise last or OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _make_way(self, place: openat.Place) -> None:
        """Remove a file, a link or an empty directory."""
        try:
            os.unlink(place.name, dir_fd=place.dir_fd)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            os.rmdir(place.name, dir_fd=place.dir_fd)
            self._forget_parent()
