"""The Linux calls that Python does not have, or not in every build (conda's lacks the pidfd ones).

Numbers are the same on every architecture for all calls used here. Nothing
here decides anything; every function raises OSError with the kernel's errno.
"""

import ctypes
import os

# PyDLL keeps the GIL over the call: after a raw clone the child must not wait for it.
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long

_PIDFD_SEND_SIGNAL = 424
_PIDFD_OPEN = 434
_CLONE3 = 435
_CLOSE_RANGE = 436

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC, MS_SLAVE = 0x4000, 0x80000

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAP_AMBIENT, _AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 47, 2, 4
CAP_SYS_PTRACE = 19
_CAP_VERSION_3 = 0x20080522
_LAST_FD = 0xFFFFFFFF


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _syscall(number: int, *arguments: int) -> int:
    return _check(int(_LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))))


def clone_process(flags: int) -> int:
    """Fork into new namespaces; 0 in the child, the child's pid in the caller's namespace.

    Python's fork hooks do not run: the child must be single-threaded, do little and exec.
    Source: clone3(2), struct clone_args.
    """
    exit_signal = 17  # SIGCHLD; anything else and waitpid(-1) would not see the child.
    # flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
    arguments = (ctypes.c_uint64 * 8)(flags, 0, 0, 0, exit_signal, 0, 0, 0)
    return _syscall(_CLONE3, ctypes.addressof(arguments), ctypes.sizeof(arguments))


def close_all_fds_but(kept: set[int]) -> None:
    """Close every descriptor from 3 on that is not named. Source: close_range(2), Linux 5.9."""
    first = 3
    for fd in sorted(fd for fd in kept if fd >= 3):
        if fd > first:
            _syscall(_CLOSE_RANGE, first, fd - 1, 0)
        first = fd + 1
    _syscall(_CLOSE_RANGE, first, _LAST_FD, 0)


def open_pidfd(pid: int) -> int:
    """Open a descriptor that means this process for ever, whoever gets its pid later (CLOEXEC)."""
    return _syscall(_PIDFD_OPEN, pid, 0)


def signal_pidfd(pidfd: int, number: int) -> None:
    """Signal the process behind a pidfd."""
    _syscall(_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0)


def read_pidfd_pid(pidfd: int) -> int:
    """Say which pid the process has for the caller; 0 when it is gone or not visible from here."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("Pid:"):
                    return max(0, int(line.split()[1]))
    except (OSError, ValueError):
        return 0
    return 0


def set_death_signal(number: int) -> None:
    """Have the kernel send this signal to the caller when the thread that forked it ends."""
    _check(int(_LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0)))


def become_subreaper() -> None:
    """Have orphaned descendants reparented to the caller."""
    _check(int(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)))


def keep_capability(number: int) -> None:
    """Have one permitted capability (below 32) survive the next exec. Source: capset(2), capabilities(7), "Ambient"."""
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    # effective, permitted, inheritable; then the same for capabilities from 32 on.
    sets = (ctypes.c_uint32 * 6)()
    _check(int(_LIBC.capget(header, sets)))
    sets[2] |= 1 << number
    _check(int(_LIBC.capset(header, sets)))
    _check(int(_LIBC.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, ctypes.c_ulong(number), 0, 0)))


def drop_ambient_capabilities() -> None:
    """Have no capability survive an exec that the program's own file does not give."""
    _check(int(_LIBC.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)))


def mount(kind: str | None, target: str, flags: int, options: str = "") -> None:
    """Mount a kernel file system, or change propagation (kind None)."""
    name = kind.encode() if kind else None
    _check(int(_LIBC.mount(name or b"none", target.encode(), name, ctypes.c_ulong(flags), options.encode() or None)))
