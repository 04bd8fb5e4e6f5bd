"""The warm parent's namespaces and the children's, made by the processes that then live in them.

The caller becomes the outer half and only waits; the working half is pid 1 of a pid namespace of its own,
so the kernel ends every check with it. Works as an ordinary user, also inside the keeper's namespaces.
"""

import os
import select
import signal

from retinue.checks.jail import syscalls
from retinue.node import kernel

_WARM = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)


def enter_namespaces() -> int:
    """Become pid 1 of new user, mount, net, ipc, uts and pid namespaces; the caller's process stays as outer half.

    Shape:  a pidfd of the caller: the way back to its own pid namespace after each child's was made.
    The outer half ends with the same code when the inner one does, and takes it along when it dies.
    Errors: OSError when the kernel or the site refuses; the caller is then half confined and must end.
    """
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(_WARM)
    # An identity map of the own ids, all that the kernel allows: user_namespaces(7).
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")
    kernel.set_death_signal(signal.SIGKILL)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid:
        _wait_outside(pid, write_fd)
    os.close(write_fd)
    kernel.set_death_signal(signal.SIGKILL)
    # getppid() is 0 here whoever lives; an outer half that died before the line above left its pipe closed.
    poller = select.poll()
    poller.register(read_fd, 0)
    if poller.poll(0):
        os._exit(1)
    os.close(read_fd)
    return kernel.open_pidfd(os.getpid())


def _wait_outside(pid: int, write_fd: int) -> None:
    """Wait for the inner half and end like it; never returns. Holds nothing that the inner half should be heard by."""
    kernel.close_all_fds_but({write_fd})
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def fork_in_namespace(self_fd: int) -> int:
    """Fork a child that is pid 1 of a pid namespace of its own; 0 in the child, its pid here in the parent."""
    # A second unshare without the way back is refused: the first one's namespace is still waiting, or over.
    syscalls.set_namespace(self_fd, syscalls.CLONE_NEWPID)
    syscalls.unshare(syscalls.CLONE_NEWPID)
    return os.fork()


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
