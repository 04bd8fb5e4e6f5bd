"""The calls of Linux that the probes need and Python does not have. Each raises OSError with the kernel's errno.

Old ones on purpose: a probe must be able to say on a kernel that is too old that it is too old.
"""

import ctypes
import os
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

NEW_MOUNT, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000

_LANDLOCK_CREATE_RULESET, _LANDLOCK_VERSION = 444, 1
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_BPF_RETURN, _SECCOMP_ALLOW = 0x06, 0x7FFF0000


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def unshare(flags: int) -> None:
    """Move the caller into new namespaces. Source: unshare(2)."""
    _check(int(_LIBC.unshare(ctypes.c_int(flags))))


def read_landlock_abi() -> int:
    """Ask which Landlock there is. Source: landlock_create_ruleset(2)."""
    nothing = ctypes.c_void_p(None)
    return _check(
        int(_LIBC.syscall(ctypes.c_long(_LANDLOCK_CREATE_RULESET), nothing, ctypes.c_size_t(0), _LANDLOCK_VERSION))
    )


def install_open_filter() -> None:
    """Put a system call filter on the caller that allows everything. Source: seccomp(2), PR_SET_SECCOMP."""
    zero = ctypes.c_ulong(0)
    _check(int(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero)))
    # struct sock_filter: code, jt, jf, k; struct sock_fprog: length, pointer.
    program = ctypes.create_string_buffer(struct.pack("HBBI", _BPF_RETURN, 0, 0, _SECCOMP_ALLOW), 8)
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(program)), 16)
    _check(int(_LIBC.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), header, zero, zero)))
