"""The Linux calls that a jail is built from and Python 3.11 does not have.

Numbers are the same on every architecture, but where a table says otherwise. Every
function raises OSError with the kernel's errno.
"""

import ctypes
import os
import struct
from collections.abc import Callable, Sequence

# PyDLL keeps the GIL: nothing here waits for long, and a release per call is what a fork ahead pays for.
_LIBC = ctypes.PyDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_LIBC.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_PRCTL_POINTER = _LIBC["prctl"]
_PRCTL_POINTER.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP, CLONE_NEWTIME = 0x02000000, 0x00000080

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MS_MOVE, MS_REC, MS_PRIVATE = 8192, 0x4000, 1 << 18
_MNT_DETACH = 2
_MADV_COLLAPSE = 25

_PIVOT_ROOTS = {"x86_64": 155, "aarch64": 41}
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_RECURSIVE, _AT_SYMLINK_NOFOLLOW = -100, 0x8000, 0x100
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_PR_SET_PDEATHSIG, _PR_CAPBSET_READ, _PR_CAPBSET_DROP = 1, 23, 24
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CLOSE_RANGE, _LAST_FD = 436, 0xFFFFFFFF


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call(number: int, *arguments: int | bytes | None) -> int:
    """Make one system call by number; bytes are passed as a pointer, None as NULL."""
    return _check(
        int(
            _LIBC.syscall(
                ctypes.c_long(number),
                *(ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments),
            )
        )
    )


def unshare(flags: int) -> None:
    """Move the caller (for CLONE_NEWPID: its next children) into new namespaces."""
    _check(int(_LIBC.unshare(flags)))


def set_namespace(fd: int, kind: int) -> None:
    """Enter the namespace of this kind that the descriptor (a pidfd too, Linux 5.8) stands for."""
    _check(int(_LIBC.setns(fd, kind)))


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2), its five arguments."""
    words = [word.encode() if word else None for word in (source, kind, options)]
    _check(int(_LIBC.mount(words[0] or b"none", target.encode(), words[1], ctypes.c_ulong(flags), words[2])))


def pivot_root() -> None:
    """Make the current directory, a mount, the root and let go of the old one."""
    _check(int(_LIBC.syscall(ctypes.c_long(_PIVOT_ROOTS[os.uname().machine]), b".", b".")))
    _check(int(_LIBC.umount2(b".", _MNT_DETACH)))


def copy_tree(path: str) -> int:
    """Clone a path with all that is mounted below it, attached nowhere; a descriptor of it (Linux 5.2)."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return call(_OPEN_TREE, _AT_FDCWD, path.encode(), flags)


def attach_tree(tree: int, target: str) -> None:
    """Mount what `copy_tree` gave on a path."""
    call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def make_tree_read_only(path: str) -> None:
    """Make a mount and all below it read-only and deaf to set-user-id bits (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    call(_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, len(attributes))


def collapse_pages(start: int, size: int) -> None:
    """Put a range of the caller's memory into huge pages, now (MADV_COLLAPSE, Linux 6.1)."""
    _check(int(_LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_COLLAPSE)))


def read_last_capability() -> int:
    """The highest capability this kernel knows. Source: PR_CAPBSET_READ is EINVAL beyond."""
    return max(number for number in range(64) if _LIBC.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0)


def forbid_new_privileges() -> None:
    """No exec gives this process or its descendants anything it has not got (PR_SET_NO_NEW_PRIVS)."""
    _check(int(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))


def forbid_dumps() -> None:
    """Nobody of the same user may trace the caller or read its memory (PR_SET_DUMPABLE 0)."""
    _check(int(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)))


def install_filter(program: bytes) -> None:
    """Apply a seccomp filter (packed struct sock_filter array) to the caller and all it starts."""
    run([step_install_filter(program)])


# --- steps: a call with its arguments made ready, for where every touched page of memory is a copy ---

Step = tuple[str, Callable[..., int], tuple[object, ...]]
"""(what it is for, the C function, its arguments): a negative result is an error."""


def run(steps: Sequence[Step]) -> None:
    """Make the calls in order.

    Errors: OSError of the first that fails, its purpose in the words.
    """
    for purpose, function, arguments in steps:
        if function(*arguments) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{purpose}: {os.strerror(number)}")


def step_death_signal(number: int) -> Step:
    return "death signal", _LIBC.prctl, (_PR_SET_PDEATHSIG, number, 0, 0, 0)


def step_new_session() -> Step:
    return "own session", _LIBC.setsid, ()


def step_unshare(purpose: str, flags: int) -> Step:
    return purpose, _LIBC.unshare, (flags,)


def step_mount_tmpfs(path: str, flags: int, options: str) -> Step:
    return f"own {path}", _LIBC.mount, (b"tmpfs", path.encode(), b"tmpfs", ctypes.c_ulong(flags), options.encode())


def step_close_from(first: int) -> Step:
    return "closing descriptors", _LIBC.syscall, tuple(ctypes.c_long(a) for a in (_CLOSE_RANGE, first, _LAST_FD, 0))


def step_drop_capabilities() -> Step:
    """Give up every capability of the caller."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    return "capabilities", _LIBC.capset, (ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def steps_drop_bounding_set() -> list[Step]:
    """No exec may ever give one back; needs CAP_SETPCAP."""
    return [
        ("bounding set", _LIBC.prctl, (_PR_CAPBSET_DROP, number, 0, 0, 0))
        for number in range(read_last_capability() + 1)
    ]


def step_install_filter(program: bytes) -> Step:
    """Apply a seccomp filter; the step holds the memory that it is read from."""
    size = struct.calcsize("@HP")
    buffer = ctypes.create_string_buffer(size + len(program))
    # struct sock_fprog { unsigned short len; struct sock_filter *filter; }, and the filter right behind it.
    ctypes.memmove(
        buffer, struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer) + size) + program, len(buffer)
    )
    return "system call filter", _PRCTL_POINTER, (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, buffer)
