"""Make the launch's srun deaf to signals, so that a `scancel` of the job does not end the nodes before they can.

A plain scancel sends TERM to every process of the job, srun included, and srun answers it with SIGKILL to its whole
step: no node could end in order, remove its directory and report. srun takes its signals by sigwait(3) in a thread;
a seccomp filter makes that one call wait for the stub's answer. The stub lets it go on only when srun has something
to say to that thread itself, which it does at its own end. SIGKILL works as ever. Standard library only.
"""

import ctypes
import fcntl
import os
import platform
import select
import socket
import struct

from retinue.node.scan import read_pending

_SECCOMP = {"x86_64": 317, "aarch64": 277, "ppc64le": 358, "s390x": 348}
_SIGTIMEDWAIT = {"x86_64": 128, "aarch64": 137, "ppc64le": 176, "s390x": 177}
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "ppc64le": 0xC0000015, "s390x": 0x80000016}
"""Numbers of seccomp(2), rt_sigtimedwait(2) and of the architecture itself, linux/audit.h."""

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_NR_AT, _ARCH_AT = 0, 4
"""Offsets in struct seccomp_data."""

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
"""SECCOMP_IOCTL_NOTIF_RECV and _SEND, linux/seccomp.h."""
_CALL_BYTES = 80
"""sizeof(struct seccomp_notif)."""
_CONTINUE = 1
"""SECCOMP_USER_NOTIF_FLAG_CONTINUE, Linux 5.5: the call happens after all."""

_libc = ctypes.CDLL(None, use_errno=True)


class Ears:
    """Both ends of the way on which the filter's listener comes from the child to the stub."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._listener = -1
        self._waiting: tuple[int, int] | None = None
        """(id of the call, thread) that waits for our answer."""

    def close_in_child(self) -> None:
        """Work between fork and exec: shut them. Where the kernel has no such filter, srun hears as ever."""
        listener = _install(platform.machine())
        if listener >= 0:
            socket.send_fds(self._far, [b"x"], [listener])
            os.close(listener)

    def take_listener(self) -> bool:
        """Take the listener once exec is settled, and hold it; False when there is none."""
        self._far.close()
        if self._near.fileno() >= 0:
            with self._near:
                _data, fds, _flags, _address = socket.recv_fds(self._near, 1, 1)
            self._listener = fds[0] if fds else -1
        return self._listener >= 0

    def close(self) -> None:
        """Let go of the listener: who waits is refused its call."""
        if self._listener >= 0:
            os.close(self._listener)
            self._listener = -1

    @property
    def is_waited_for(self) -> bool:
        """Its thread waits for our answer."""
        return self._waiting is not None

    def check(self) -> None:
        """Let srun's thread hear what srun itself sends it; what came from outside is heard then, too."""
        if self._listener < 0:
            return
        try:
            if self._waiting is None:
                self._waiting = self._receive()
            if self._waiting is not None and read_pending(self._waiting[1]):
                fcntl.ioctl(self._listener, _SEND, struct.pack("=QqiI", self._waiting[0], 0, 0, _CONTINUE))
                self._waiting = None
        except OSError:
            # Its thread or all of it is gone: nobody waits any more.
            self._waiting = None

    def _receive(self) -> tuple[int, int] | None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        if not any(events & select.POLLIN for _fd, events in poll.poll(0)):
            return None
        call = bytearray(_CALL_BYTES)
        fcntl.ioctl(self._listener, _RECEIVE, call)
        number, thread = struct.unpack_from("=QI", call)
        return number, thread


def build_filter(machine: str) -> bytes:
    """Build the program: this one call waits, every other goes on. Empty for a machine that is not known."""
    if machine not in _SECCOMP:
        return b""
    lines = (
        (_LOAD, 0, 0, _ARCH_AT),
        (_JUMP_EQUAL, 0, 3, _ARCH[machine]),
        (_LOAD, 0, 0, _NR_AT),
        (_JUMP_EQUAL, 0, 1, _SIGTIMEDWAIT[machine]),
        (_RETURN, 0, 0, _NOTIFY),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _install(machine: str) -> int:
    """Install the filter in this process, for good; its listener's descriptor, -1 where the kernel refuses."""
    program = build_filter(machine)
    if not program:
        return -1
    lines = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count, and after its padding a pointer.
    header = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(lines)))
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return -1
    return int(_libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _NEW_LISTENER, header))
