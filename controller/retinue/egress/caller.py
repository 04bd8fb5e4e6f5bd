"""What a waiting call is about: its caller's memory, sockets and network, looked at from outside.

Needs the rights of ptrace(2) over the caller. Everything read here is hostile.
"""

import ctypes
import errno
import os
from collections import OrderedDict

from retinue.egress import numbers as n

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_LIBC.process_vm_readv.restype = ctypes.c_ssize_t
_PIDFD_THREAD = os.O_EXCL
"""6.9: a pidfd of a thread; before that of its process, which has the same descriptors unless it unshared them."""
_PIDFDS_MAX = 256


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64), ("length", ctypes.c_uint64))


def read_memory(tid: int, address: int, size: int) -> bytes:
    """Read the caller's memory, all of it or nothing.

    Errors: OSError as of process_vm_readv(2): EFAULT, EPERM, ESRCH.
    """
    if size <= 0:
        return b""
    buffer = ctypes.create_string_buffer(size)
    ours = _Iovec(ctypes.addressof(buffer), size)
    theirs = _Iovec(address, size)
    count = _LIBC.process_vm_readv(tid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    if count < 0:
        _raise()
    if count < size:
        raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
    return buffer.raw


class Callers:
    """Pidfds of the last callers: one call less for each connect of a busy thread."""

    def __init__(self) -> None:
        self._pidfds: OrderedDict[int, int] = OrderedDict()
        self._has_threads = True

    def take_descriptor(self, tid: int, number: int) -> int:
        """Copy a descriptor of the caller into this process (CLOEXEC).

        Errors: OSError as of pidfd_getfd(2): EBADF, EPERM, ESRCH.
        """
        known = self._pidfds.get(tid)
        if known is not None:
            try:
                return take_descriptor(known, number)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    raise
                self._drop(tid)
        return take_descriptor(self._open(tid), number)

    def _open(self, tid: int) -> int:
        while len(self._pidfds) >= _PIDFDS_MAX:
            os.close(self._pidfds.popitem(last=False)[1])
        pidfd = self._open_thread(tid)
        self._pidfds[tid] = pidfd
        return pidfd

    def _open_thread(self, tid: int) -> int:
        if self._has_threads:
            try:
                return _syscall(n.PIDFD_OPEN, tid, _PIDFD_THREAD)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._has_threads = False
        return _syscall(n.PIDFD_OPEN, read_process_id(tid), 0)

    def _drop(self, tid: int) -> None:
        os.close(self._pidfds.pop(tid))


def take_descriptor(pidfd: int, number: int) -> int:
    """Copy a descriptor of another process into this one (CLOEXEC). Source: pidfd_getfd(2)."""
    return _syscall(n.PIDFD_GETFD, pidfd, number, 0)


def read_process_id(tid: int) -> int:
    """Find the process that a thread belongs to.

    Errors: OSError ESRCH when it is gone.
    """
    try:
        with open(f"/proc/{tid}/status", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("Tgid:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))


def read_program(tid: int) -> str:
    """Read the name of the caller's program, as it calls itself; empty when it is gone."""
    try:
        with open(f"/proc/{tid}/comm", encoding="utf-8", errors="replace") as file:
            return "".join(letter for letter in file.read(64).rstrip("\n") if letter.isprintable())
    except OSError:
        return ""


def read_network(tid: int | str) -> str:
    """Name the network namespace of a thread; empty when it cannot be told."""
    try:
        return os.readlink(f"/proc/{tid}/ns/net")
    except OSError:
        return ""


def _syscall(number: int, *arguments: int) -> int:
    result = int(_LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments)))
    if result < 0:
        _raise()
    return result


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
