"""From a forked child that is about to become a service to its keeper: the listener of its filter.

The child says the descriptor's number, the keeper takes a copy of it and says so. Nothing is
sent by SCM_RIGHTS: under `udp: full` sendmsg itself would wait for a supervisor that has no
listener yet. The child keeps none, or a service could answer its own calls.
"""

import ctypes
import errno
import os
import socket
import struct

from retinue.egress import numbers as n
from retinue.egress.bpf import build_filter
from retinue.egress.caller import take_descriptor
from retinue.node.kernel import open_pidfd

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_NUMBER = struct.Struct("=i")
_TAKEN = b"t"
_PR_SET_NO_NEW_PRIVS = 38


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


class Handover:
    """One child's handover: made before the fork, used on both sides of it."""

    def __init__(self, machine: n.Machine, udp: str) -> None:
        self._machine = machine
        self._filter = build_filter(machine, udp)
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)

    @property
    def child_end(self) -> int:
        """The descriptor that the child needs beside `fileno()`."""
        return self._theirs.fileno()

    # --- in the child -------------------------------------------------------------------------

    def install(self) -> None:
        """Guard this process and all that comes of it; returns when the keeper has the listener.

        Errors: OSError; the child must not go on then.
        """
        self._ours.close()
        listener = install_filter(self._machine, self._filter)
        os.write(self._theirs.fileno(), _NUMBER.pack(listener))
        if os.read(self._theirs.fileno(), 1) != _TAKEN:
            raise OSError(errno.EPERM, "the keeper did not take the listener")
        os.close(listener)

    # --- in the keeper ------------------------------------------------------------------------

    def fileno(self) -> int:
        """Readable when the child has a listener, or died."""
        return self._ours.fileno()

    def forked(self) -> None:
        """The child has its own copy of its end."""
        self._theirs.close()

    def take(self, pid: int) -> int | None:
        """Take the listener; None when the child failed or died before it had one.

        Errors: OSError when it cannot be taken; BlockingIOError when nothing was said yet.
        """
        said = os.read(self._ours.fileno(), _NUMBER.size)
        if len(said) < _NUMBER.size:
            return None
        pidfd = open_pidfd(pid)
        try:
            listener = take_descriptor(pidfd, *_NUMBER.unpack(said))
        finally:
            os.close(pidfd)
        os.write(self._ours.fileno(), _TAKEN)
        return listener

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


def install_filter(machine: n.Machine, steps: bytes) -> int:
    """Install a filter with a listener for the calling thread; returns the listener (CLOEXEC).

    Errors: OSError EBUSY when a filter with a listener is there already: a task can have one only.
    """
    if _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    program = _Program(len(steps) // 8, steps)
    flags = n.NEW_LISTENER | n.SPEC_ALLOW
    listener = _seccomp(machine, flags | n.WAIT_KILLABLE, program)
    if listener < 0 and ctypes.get_errno() == errno.EINVAL:
        listener = _seccomp(machine, flags, program)
    if listener < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return listener


def _seccomp(machine: n.Machine, flags: int, program: _Program) -> int:
    return int(
        _LIBC.syscall(
            ctypes.c_long(machine.seccomp),
            ctypes.c_long(n.SET_MODE_FILTER),
            ctypes.c_long(flags),
            ctypes.byref(program),
        )
    )
