"""Numbers of the kernel's interface, by machine. Two machines are known; on any other the guard is off.

Source: include/uapi/linux/{audit,seccomp,socket}.h, arch/x86/entry/syscalls/syscall_64.tbl,
include/uapi/asm-generic/unistd.h (aarch64).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """One architecture: what a filter compares with."""

    audit: int
    """AUDIT_ARCH_*: tells its own calls from those of a 32-bit program."""
    socket: int
    connect: int
    sendto: int
    sendmsg: int
    sendmmsg: int
    seccomp: int
    other_calls_from: int = 0
    """First number of another interface under the same `audit` (x32); 0: there is none."""


MACHINES = {
    "x86_64": Machine(0xC000003E, 41, 42, 44, 46, 307, 317, other_calls_from=0x40000000),
    "aarch64": Machine(0xC00000B7, 198, 203, 206, 211, 269, 277),
}
"""By `os.uname().machine`."""

IO_URING = (425, 426, 427)
"""setup, enter, register; the same everywhere."""
PIDFD_OPEN = 434
PIDFD_GETFD = 438

AF_UNSPEC, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 0, 1, 2, 10, 16
SOCK_STREAM, SOCK_DGRAM, SOCK_TYPE_MASK = 1, 2, 0xF
IPPROTO_TCP, IPPROTO_UDP, IPPROTO_MPTCP = 6, 17, 262
MSG_FASTOPEN = 0x20000000

SET_MODE_FILTER, GET_NOTIF_SIZES = 1, 3
NEW_LISTENER, SPEC_ALLOW, WAIT_KILLABLE = 8, 4, 32
"""Flags of seccomp(2). SPEC_ALLOW: no speculation mitigation, which would slow the service down. WAIT_KILLABLE
(5.19): once a call is looked at, only a deadly signal interrupts it, so no emulated call happens twice."""

RET_ALLOW, RET_NOTIFY, RET_ERRNO = 0x7FFF0000, 0x7FC00000, 0x00050000

NOTIF_RECV, NOTIF_SEND, NOTIF_ID_VALID = 0xC0502100, 0xC0182101, 0x40082102
NOTIF_ADDFD, NOTIF_SET_FLAGS = 0x40182103, 0x40082104
NOTIF_BYTES, RESPONSE_BYTES = 80, 24
SYNC_WAKE_UP = 1
"""6.6 and later: caller and supervisor share a CPU while one waits for the other; halves the cost of a connect."""
RESPONSE_CONTINUE = 1
ADDFD_SEND = 2
