"""Go into namespaces of one's own and try things there. For the children that `bounded` makes, never for the caller."""

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

from retinue.doctor import calls
from retinue.doctor.bounded import StepRefused
from retinue.node import kernel

NAMESPACES = {
    "mount": calls.NEW_MOUNT,
    "net": calls.NEW_NET,
    "ipc": calls.NEW_IPC,
    "uts": calls.NEW_UTS,
    "pid": calls.NEW_PID,
}
"""All but the user namespace, which comes first and owns the others. The pid namespace is the last to be entered."""
_MS_PRIVATE = 0x40000


def take_step(name: str, work: Callable[[], object]) -> None:
    """Do one step of a trial.

    Errors: StepRefused with the step's name.
    """
    try:
        work()
    except OSError as error:
        raise StepRefused(name, error) from None


def enter(names: tuple[str, ...]) -> None:
    """Go into a user namespace, as root of it, and into these namespaces.

    Shape:  with `pid` among them the caller goes on as pid 1 of it; the process it was waits and ends with it.
    Errors: StepRefused.
    """
    uid, gid = os.geteuid(), os.getegid()
    take_step("user namespace", lambda: calls.unshare(calls.NEW_USER))
    for path, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        take_step("id map", lambda path=path, text=text: Path("/proc/self", path).write_text(text))  # type: ignore[misc]
    for name, flag in NAMESPACES.items():
        if name in names:
            take_step(f"{name} namespace", lambda flag=flag: calls.unshare(flag))  # type: ignore[misc]
    if "mount" in names:
        take_step("private mount table", lambda: kernel.mount(None, "/", kernel.MS_REC | _MS_PRIVATE))
    if "pid" in names:
        take_step("process in a pid namespace", _become_first)


def _become_first() -> None:
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read_fd)
        os.waitpid(pid, 0)
        os._exit(0)
    os.close(write_fd)
    kernel.set_death_signal(signal.SIGKILL)
    # getppid() is 0 here whoever lives; a parent that died before the line above left its pipe closed.
    poller = select.poll()
    poller.register(read_fd, 0)
    if poller.poll(0):
        os._exit(1)
    os.close(read_fd)
