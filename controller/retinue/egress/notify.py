"""The supervisor's end of seccomp's notifications: take one, answer it.

What is taken is written by the kernel straight into memory that outlives this
process: a call that was taken and not answered is never offered again, so whoever
comes next must find it there. Source: seccomp_unotify(2).
"""

import ctypes
import errno
import mmap
import os
import struct
from typing import NamedTuple

from retinue.egress import numbers as n

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)

SLATE_BYTES = mmap.PAGESIZE
_NOTICE = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_ADDFD = struct.Struct("=QIIII")
_ID = struct.Struct("=Q")
_MARK = struct.Struct("=QqqiII")
"""On the slate after the notice, the fields of `Mark`."""
_MARK_AT = 128
_ZEROS = bytes(n.NOTIF_BYTES)
_NO_MARK = bytes(_MARK.size)

NOTHING, BEGUN, TIMED = 0, 1, 2


class Notice(NamedTuple):
    """One call that waits for an answer."""

    id: int
    tid: int
    """The calling thread, in this process's pid namespace."""
    number: int
    """Of the call."""
    arguments: tuple[int, ...]


class Mark(NamedTuple):
    """How far a call was when this was written."""

    key: int
    """Whose listener it came from; 0: from none."""
    seconds: int = 0
    microseconds: int = 0
    """The send timeout that the caller's socket had."""
    fd: int = -1
    """The socket, by the caller's number."""
    state: int = NOTHING
    """BEGUN: a connect may have happened. TIMED: and the socket's send timeout is not its own."""
    tries: int = 0
    """Supervisors that died over this call."""


class Slate:
    """One page of shared memory: the call that is looked at, and how far it is."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, SLATE_BYTES)
        self._anchor = ctypes.c_char.from_buffer(self._page)
        self.address = ctypes.addressof(self._anchor)

    def read_notice(self) -> Notice | None:
        """Read the call on the slate; None: there is none."""
        fields = _NOTICE.unpack_from(self._page)
        return Notice(fields[0], fields[1], fields[3], fields[6:]) if fields[0] else None

    def read_mark(self) -> Mark:
        return Mark(*_MARK.unpack_from(self._page, _MARK_AT))

    def write_mark(self, mark: Mark) -> None:
        _MARK.pack_into(self._page, _MARK_AT, *mark)

    def wipe(self) -> None:
        """Forget the call; it was answered, or its caller is gone."""
        self._page[: n.NOTIF_BYTES] = _ZEROS
        self._page[_MARK_AT : _MARK_AT + _MARK.size] = _NO_MARK


def build_slate() -> int:
    """Make the page; its descriptor is what is kept."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("retinue-egress", os.MFD_CLOEXEC)
    else:  # A Python built against an old glibc.
        fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.ftruncate(fd, SLATE_BYTES)
    return fd


def receive(listener: int, key: int, slate: Slate) -> Notice | None:
    """Take one call onto the slate; None when its caller is gone already.

    Only after poll(2) has said that there is one: else it would wait.
    """
    slate.write_mark(Mark(key))
    if _LIBC.ioctl(listener, n.NOTIF_RECV, slate.address) < 0:
        slate.wipe()
        return None
    return slate.read_notice()


def is_waiting(listener: int, notice: Notice) -> bool:
    """Say whether the caller still waits: what was read of its memory just now was its own."""
    return bool(_LIBC.ioctl(listener, n.NOTIF_ID_VALID, _ID.pack(notice.id)) == 0)


def answer_errno(listener: int, notice: Notice, number: int) -> None:
    """Have the call fail with this errno, or return 0 when it is 0."""
    _send(listener, _RESPONSE.pack(notice.id, 0, -number, 0))


def answer_value(listener: int, notice: Notice, value: int) -> None:
    """Have the call return this."""
    _send(listener, _RESPONSE.pack(notice.id, value, 0, 0))


def answer_go_on(listener: int, notice: Notice) -> None:
    """Have the kernel run the call as it is *then*: the caller's memory may have changed."""
    _send(listener, _RESPONSE.pack(notice.id, 0, 0, n.RESPONSE_CONTINUE))


def answer_descriptor(listener: int, notice: Notice, fd: int, is_cloexec: bool) -> int:
    """Put a copy of a descriptor into the caller and have the call return its number there; an errno, or 0."""
    flags = os.O_CLOEXEC if is_cloexec else 0
    if _LIBC.ioctl(listener, n.NOTIF_ADDFD, _ADDFD.pack(notice.id, n.ADDFD_SEND, fd, 0, flags)) >= 0:
        return 0
    if ctypes.get_errno() != errno.EINVAL:
        return ctypes.get_errno()
    # Before 5.14 both steps are ours: a caller that is killed in between takes the descriptor with it.
    number = _LIBC.ioctl(listener, n.NOTIF_ADDFD, _ADDFD.pack(notice.id, 0, fd, 0, flags))
    if number < 0:
        return ctypes.get_errno()
    answer_value(listener, notice, number)
    return 0


def speed_up(listener: int) -> None:
    """Let the kernel switch straight between caller and supervisor; older ones do not know how."""
    _LIBC.ioctl(listener, n.NOTIF_SET_FLAGS, ctypes.c_void_p(n.SYNC_WAKE_UP))


def _send(listener: int, response: bytes) -> None:
    while _LIBC.ioctl(listener, n.NOTIF_SEND, response) < 0:
        number = ctypes.get_errno()
        if number == errno.ENOENT:  # The caller was killed while it waited.
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
