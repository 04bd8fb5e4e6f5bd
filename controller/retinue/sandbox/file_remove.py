"""Removes what has a name in a sandbox, with everything below it; links are removed, never followed.

Holds three descriptors however deep the tree is: each directory is opened anew from its top, links refused, and what
lies too deep for one path is first moved up.
"""

import errno
import os
import stat

from retinue.sandbox import openat
from retinue.sandbox.file_acts import translating
from retinue.sandbox.file_lanes import Stop

_DEEP_BYTES = 512
"""Of a path: the kernel looks up every part of it each time."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Removed meanwhile, or something else has the name now; that is then found in the directory above, not empty."""
_REFILLED_MAX = 100
"""How often a directory may have something in it again, in all."""


def remove_path(root_fd: int, path: bytes, recursive: bool, stop: Stop) -> int:
    """Remove a file, a link or a directory; gives how many entries that were."""
    with translating("remove", path):
        place = openat.find_place(root_fd, path)
        try:
            if not stat.S_ISDIR(place.look().st_mode):
                os.unlink(place.name, dir_fd=place.dir_fd)
                return 1
            if recursive:
                return _remove_tree(place, stop)
            os.rmdir(place.name, dir_fd=place.dir_fd)
            return 1
        finally:
            place.close()


def _remove_tree(place: openat.Place, stop: Stop) -> int:
    top_fd = openat.open_at(place.dir_fd, place.name, openat.LOOK | os.O_DIRECTORY | os.O_NOFOLLOW, openat.PLAIN)
    try:
        removal = _Removal(top_fd, stop)
        removal.empty_all()
    finally:
        os.close(top_fd)
    os.rmdir(place.name, dir_fd=place.dir_fd)
    return removal.count + 1


class _Removal:
    def __init__(self, top_fd: int, stop: Stop) -> None:
        self._top_fd = top_fd
        self._stop = stop
        self._moved_count = 0
        self._refilled_count = 0
        self.count = 0

    def empty_all(self) -> None:
        """Remove everything below the top."""
        pending = [(b".", False)]
        while pending:
            path, is_empty = pending.pop()
            if not is_empty:
                below = self._empty(path)
                pending.append((path, True))
                pending += [(name, False) for name in below]
            elif path != b"." and not self._remove_empty(path):
                pending.append((path, False))

    def _empty(self, path: bytes) -> list[bytes]:
        """Remove what is no directory; gives the paths of what is."""
        below = []
        try:
            dir_fd = self._open(path, openat.LIST)
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise
        try:
            with os.scandir(dir_fd) as found:
                for item in found:
                    self._stop.check()
                    name = os.fsencode(item.name)
                    if not self._unlink(dir_fd, name):
                        deeper = path + b"/" + name
                        below.append(deeper if len(path) < _DEEP_BYTES else self._move_up(dir_fd, name, deeper))
        finally:
            os.close(dir_fd)
        return below

    def _unlink(self, dir_fd: int, name: bytes) -> bool:
        try:
            os.unlink(name, dir_fd=dir_fd)
        except FileNotFoundError:
            return True
        except IsADirectoryError:
            return False
        self.count += 1
        return True

    def _move_up(self, dir_fd: int, name: bytes, path: bytes) -> bytes:
        moved = b"./.retinue-removed-%d" % self._moved_count
        self._moved_count += 1
        try:
            os.rename(name, moved, src_dir_fd=dir_fd, dst_dir_fd=self._top_fd)
        except OSError as error:
            # An overlay does not rename a directory of the image; those are as deep as an image is.
            if error.errno != errno.EXDEV:
                raise
            return path
        return moved

    def _remove_empty(self, path: bytes) -> bool:
        """Remove a directory; False: it has something in it again."""
        head, _, name = path.rpartition(b"/")
        try:
            dir_fd = self._open(head, openat.LOOK | os.O_DIRECTORY)
            try:
                os.rmdir(name, dir_fd=dir_fd)
            finally:
                os.close(dir_fd)
        except OSError as error:
            if error.errno in _GONE:
                return True
            self._refilled_count += 1
            if error.errno != errno.ENOTEMPTY or self._refilled_count > _REFILLED_MAX:
                raise
            return False
        self.count += 1
        return True

    def _open(self, path: bytes, flags: int) -> int:
        return openat.open_at(self._top_fd, path, flags | os.O_NOFOLLOW, openat.PLAIN)
