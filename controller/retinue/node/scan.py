"""Read processes from /proc, and signal exactly one. Standard library only: the stub uses it too.

Sees what the caller's pid namespace shows. Never looks for a name, and never says what belongs to whom.
"""

import os
import signal
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from retinue.node import kernel

DEAD_STATES = frozenset("ZXx")
"""proc_pid_stat(5): exited, only the status is left."""
_EXITING = 0x4
"""PF_EXITING in the kernel's flags of a task, include/linux/sched.h; it never runs a program's code again."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat."""

    pid: int
    ppid: int
    group: int
    session: int
    state: str
    start: int
    """Clock ticks since boot; with the pid it names a process for ever."""
    name: str = ""
    """The program's, 15 characters of it; for people."""
    threads: int = 1
    is_exiting: bool = False
    """Its first thread is on its way out or dead."""

    @property
    def is_dead(self) -> bool:
        """Whether only its status is left: a thread that hangs in the kernel outlives the first one."""
        return self.state in DEAD_STATES and self.threads <= 1


class Named(Protocol):
    """What names a process for ever."""

    @property
    def pid(self) -> int: ...
    @property
    def start(self) -> int: ...


def parse_stat(text: str) -> Process:
    """Parse one /proc/PID/stat; the name may hold spaces and parentheses."""
    pid, _, rest = text.partition(" (")
    name, _, rest = rest.rpartition(") ")
    fields = rest.split()
    return Process(
        pid=int(pid),
        state=fields[0],
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=int(fields[19]),
        name=name,
        threads=int(fields[17]),
        is_exiting=bool(int(fields[6]) & _EXITING),
    )


def read_process(pid: int) -> Process | None:
    """Read one process; None when it is gone. Never blocks."""
    data = _read(f"/proc/{pid}/stat")
    return parse_stat(data.decode(errors="replace")) if data else None


def list_pids() -> list[int]:
    """List every process that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_processes() -> dict[int, Process]:
    """Read every process that /proc shows, zombies included."""
    found = map(read_process, list_pids())
    return {process.pid: process for process in found if process is not None}


def read_children(parent: int) -> list[int]:
    """Read a process's children; none where the kernel does not tell (CONFIG_PROC_CHILDREN)."""
    return [int(word) for word in _read(f"/proc/{parent}/task/{parent}/children").split()]


def read_words(pid: int, name: str) -> list[bytes]:
    """Read `environ` or `cmdline` of a process; empty when there is none to read (gone, hidden, a zombie).

    May block when the process is stuck in a page fault: call it where that is bounded.
    """
    data = _read(f"/proc/{pid}/{name}")
    return data.split(b"\0") if data else []


def has_tags(pid: int, tags: frozenset[bytes]) -> bool | None:
    """Say whether all `NAME=value` tags are in a process's environment; None when there is none to read.

    No tags match nobody: what is found here is killed. May block like `read_words`.
    """
    if not tags:
        return False
    environment = read_words(pid, "environ")
    return tags <= set(environment) if environment else None


def find_descendants(processes: Mapping[int, Process], roots: Iterable[int], never: Set[int] = frozenset()) -> set[int]:
    """Find what descends from the roots, which are left out themselves, as is what is in or below `never`."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found and pid not in never]
        found.update(fresh)
        waiting.extend(fresh)
    return found


def find_ancestors(processes: Mapping[int, Process], pid: int) -> set[int]:
    """Find the pid and all above it."""
    found: set[int] = set()
    while pid in processes and pid not in found:
        found.add(pid)
        pid = processes[pid].ppid
    return found


def is_running(process: Named) -> bool:
    """Say whether this very process still runs (a zombie does not)."""
    now = read_process(process.pid)
    return now is not None and now.start == process.start and not now.is_dead


def is_doomed(process: Named) -> bool:
    """Say whether it is dying or has SIGKILL to take: no signal makes it end sooner, and it does nothing more."""
    now = read_process(process.pid)
    if now is None or now.start != process.start or now.is_exiting:
        return True
    pending = [line for line in _read(f"/proc/{process.pid}/status").splitlines() if line.startswith(b"S")]
    masks = [int(line.split()[1], 16) for line in pending if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    return any(mask >> (signal.SIGKILL - 1) & 1 for mask in masks)


def read_pending(thread: int) -> bool:
    """Say whether a signal waits for this very thread; one that was sent to the whole process does not count."""
    lines = _read(f"/proc/{thread}/status").splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith(b"SigPnd:"))


def send_signal(process: Named, number: int) -> bool:
    """Signal exactly this process; False when it is gone or not ours to signal.

    The pidfd is opened first and the start time read after it, so a reused pid is never hit.
    """
    try:
        pidfd = kernel.open_pidfd(process.pid)
    except OSError:
        return False
    try:
        if not is_running(process):
            return False
        kernel.signal_pidfd(pidfd, number)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def kill_pids(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Signal what a scan found a moment ago; what is gone or not ours to signal is passed over."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _read(path: str) -> bytes:
    """Read a whole /proc file; empty when it is gone or hidden."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    parts = []
    try:
        with suppress(OSError):
            while part := os.read(handle, 1 << 16):
                parts.append(part)
    finally:
        os.close(handle)
    return b"".join(parts)
