"""Opens what lies below a directory that others change while we look, and nothing else. Source: openat2(2), Linux 5.6.

A path is never resolved by us and then used: the kernel resolves it below a descriptor that we hold, so a link that is
swapped in between changes what is found inside and never leads outside. No name of the host is ever looked up, /proc
and /dev of the sandbox are left alone (their files answer as the reader, who is more than the sandbox), and nothing but
regular files and directories is opened for more than a look.
"""

import ctypes
import errno
import os
import platform
import stat
from dataclasses import dataclass

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
# One number for every architecture that Linux has had since 5.6; alpha's differs and has no port of ours.
_OPENAT2 = ctypes.c_long(437)

NO_XDEV = 0x01
NO_MAGICLINKS = 0x02
NO_SYMLINKS = 0x04
BENEATH = 0x08
IN_ROOT = 0x10
BELOW = BENEATH | NO_MAGICLINKS | NO_XDEV
"""Links are followed as long as they stay below the directory."""
PLAIN = BELOW | NO_SYMLINKS
"""No links at all."""

PATH_MAX_BYTES = 4095
LOOK = os.O_PATH | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK
SAFE = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""With every open for reading or writing: never wait for a FIFO's other end or a lease, never take a terminal."""
_RACE_TRIES = 128
"""A walk through ".." is given up by the kernel whenever anything on the machine is renamed meanwhile."""


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_HOW_BYTES = ctypes.c_size_t(ctypes.sizeof(_How))


def open_at(dir_fd: int, path: bytes, flags: int, resolve: int, mode: int = 0) -> int:
    """Call openat2(2). Errors: OSError; EAGAIN when the kernel gave up every time."""
    how = _How(flags, mode, resolve)
    for _ in range(_RACE_TRIES):
        fd = int(_LIBC.syscall(_OPENAT2, ctypes.c_int(dir_fd), path, ctypes.byref(how), _HOW_BYTES))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):
            break
    if number == errno.ENOSYS:
        raise OSError(number, f"Linux {platform.release()} has no openat2, or a filter of the node refuses it")
    raise OSError(number, os.strerror(number))


def encode_path(path: str | bytes) -> bytes:
    """Make the bytes that the kernel takes, from "/". Errors: OSError EINVAL, ENAMETOOLONG."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ)) from None
    if not raw or b"\0" in raw:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if len(raw) > PATH_MAX_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return raw


def find(root_fd: int, path: bytes, flags: int = LOOK, mode: int = 0) -> int:
    """Open a path as a process inside would, on the sandbox's disk and its /dev/shm only.

    Shape:  flags are those of open(2). In /dev/shm the last name must not be a link unless it is only looked at.
    Errors: OSError; EXDEV: it lies on another file system, such as /proc.
    """
    try:
        return open_at(root_fd, path, flags, IN_ROOT | NO_MAGICLINKS | NO_XDEV, mode)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    if flags & os.O_PATH:
        return _find_in_shm(root_fd, path, flags)
    place = find_place(root_fd, path)
    try:
        return open_at(place.dir_fd, place.name, flags, PLAIN, mode)
    finally:
        place.close()


def _find_in_shm(root_fd: int, path: bytes, flags: int) -> int:
    fd = open_at(root_fd, path, flags, IN_ROOT | NO_MAGICLINKS)
    try:
        if read_mount(fd) not in (read_mount(root_fd), _find_shm_mount(root_fd)):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    except OSError:
        os.close(fd)
        raise
    return fd


def _find_shm_mount(root_fd: int) -> int:
    try:
        fd = open_at(root_fd, b"dev/shm", LOOK | os.O_DIRECTORY, IN_ROOT | NO_MAGICLINKS | NO_SYMLINKS)
    except OSError:
        return -1
    try:
        return read_mount(fd)
    finally:
        os.close(fd)


def read_mount(fd: int) -> int:
    """Say which mount a descriptor is of. The device does not tell: an overlay has several. Source: proc(5), fdinfo."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
        for line in lines:
            if line.startswith(b"mnt_id:"):
                return int(line.split()[1])
    raise OSError(errno.ENOSYS, "this kernel does not tell mounts apart")


def split(path: bytes) -> tuple[bytes, bytes]:
    """Give the parent and the last name, which is no "." and no "..". Errors: OSError EINVAL."""
    head, _, name = path.rstrip(b"/").rpartition(b"/")
    if name in (b"", b".", b".."):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return head + b"/", name


@dataclass(frozen=True, slots=True)
class Place:
    """A name in a directory that is held open, whatever has that name now or later."""

    dir_fd: int
    name: bytes

    def look(self) -> os.stat_result:
        """Say what has the name; a link is a link. Errors: OSError."""
        return os.stat(self.name, dir_fd=self.dir_fd, follow_symlinks=False)

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self.dir_fd)


def find_place(root_fd: int, path: bytes) -> Place:
    """Find the parent of a path; the caller closes it. Errors: OSError."""
    head, name = split(path)
    return Place(find(root_fd, head, LOOK | os.O_DIRECTORY), name)


def reopen(found_fd: int, flags: int) -> int:
    """Open for reading or writing the regular file that a look has found; closes the look.

    Errors: OSError ENXIO: no regular file; EISDIR: a directory; EAGAIN: a process holds a lease on it.
    """
    try:
        _check_regular(os.fstat(found_fd).st_mode)
        # By our own descriptor: the same file, whatever its name means by now.
        return os.open(f"/proc/self/fd/{found_fd}", flags | SAFE)
    finally:
        os.close(found_fd)


def open_for_writing(root_fd: int, path: bytes, mode: int) -> tuple[int, bool]:
    """Open a regular file, made where it is missing; gives its descriptor, and whether it was made.

    Shape:  a link is followed, also to a file that is not there yet; nothing of an old file is cut off.
    Errors: OSError as from reopen.
    """
    try:
        found_fd = find(root_fd, path)
    except FileNotFoundError:
        fd = find(root_fd, path, os.O_WRONLY | os.O_CREAT | SAFE, mode)
        try:
            _check_regular(os.fstat(fd).st_mode)
        except OSError:
            os.close(fd)
            raise
        return fd, True
    return reopen(found_fd, os.O_WRONLY), False


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
