"""Find the processes of one incarnation, by reading /proc. Never by name.

A process belongs to it when it descends from the leader, is in the leader's
session or group, carries the incarnation's tags in its environment, or writes
into its log pipe; so does everything that descends from such a process.
Sees what the agent's pid namespace shows.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field

DEAD_STATES = frozenset("ZXx")
"""proc_pid_stat(5): exited, only the status is left."""


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


@dataclass(frozen=True, slots=True)
class Tree:
    """The marks of one incarnation's processes."""

    leader: int
    """0: never executed."""
    leader_start: int
    """0: not known (it was gone before anyone looked)."""
    tags: frozenset[bytes]
    """`NAME=value` entries that all must be in the environment."""
    log_inode: int = 0
    """Of the log pipe; 0: none."""
    never: frozenset[int] = field(default_factory=frozenset)
    """Pids that are ours and not a replica's: agent and keeper."""
    reaper: int = 0
    """On whom orphans land: the keeper. 0: nobody is hunted."""


def parse_stat(text: str) -> Process:
    """Parse one /proc/PID/stat; the name may hold spaces and parentheses."""
    pid, _, rest = text.partition(" ")
    fields = rest[rest.rindex(")") + 2 :].split()
    return Process(
        pid=int(pid),
        state=fields[0],
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=int(fields[19]),
    )


def read_process(pid: int) -> Process | None:
    """Read one process; None when it is gone."""
    data = _read(f"/proc/{pid}/stat")
    return parse_stat(data.decode(errors="replace")) if data else None


def read_processes() -> dict[int, Process]:
    """Read every process that /proc shows, zombies included."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def find_tree(tree: Tree) -> list[Process]:
    """Find everything of the incarnation that still runs (zombies do not)."""
    processes = read_processes()
    found = _close_over_children(processes, _find_roots(processes, tree), tree.never)
    return [process for process in found if process.state not in DEAD_STATES]


def find_group(tree: Tree) -> list[Process]:
    """Find what still runs of the leader's process group and session."""
    processes = read_processes()
    return [p for p in _find_session(processes, tree) if p.state not in DEAD_STATES]


def send_signal(process: Process, number: int) -> bool:
    """Signal exactly this process; False when it is gone or not ours to signal.

    The pidfd is opened first and the start time read after it, so a reused pid is never hit.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.start != process.start:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _find_session(processes: dict[int, Process], tree: Tree) -> list[Process]:
    if not tree.leader:
        return []
    holder = processes.get(tree.leader)
    if holder is not None and tree.leader_start and holder.start != tree.leader_start:
        # The kernel reuses a pid only when no group and no session has that number any more.
        return []
    return [p for p in processes.values() if tree.leader in (p.pid, p.group, p.session) and p.pid not in tree.never]


def _find_roots(processes: dict[int, Process], tree: Tree) -> list[Process]:
    roots = {process.pid: process for process in _find_session(processes, tree)}
    owner = os.geteuid()
    for pid, process in processes.items():
        if pid in roots or pid in tree.never or process.state in DEAD_STATES:
            continue
        if _is_marked(pid, tree, owner):
            roots[pid] = process
    return list(roots.values())


def _is_marked(pid: int, tree: Tree, owner: int) -> bool:
    try:
        # Spares the costlier reads for processes of other users; root's are unreadable for us anyway.
        if os.stat(f"/proc/{pid}").st_uid not in (owner, 0):
            return False
    except OSError:
        return False
    if tree.log_inode and any(_is_pipe(f"/proc/{pid}/fd/{fd}", tree.log_inode) for fd in (1, 2)):
        return True
    return bool(has_tags(pid, tree.tags))


def has_tags(pid: int, tags: frozenset[bytes]) -> bool | None:
    """Say whether all tags are in a process's environment; None when there is none to read (gone, hidden, a zombie).

    No tags match nobody: what is found here is killed.
    """
    if not tags:
        return False
    environment = _read(f"/proc/{pid}/environ")
    return tags <= set(environment.split(b"\0")) if environment else None


def _is_pipe(path: str, inode: int) -> bool:
    try:
        return os.readlink(path) == f"pipe:[{inode}]"
    except OSError:
        return False


def _close_over_children(processes: dict[int, Process], roots: list[Process], never: frozenset[int]) -> list[Process]:
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.ppid, []).append(process)
    found: dict[int, Process] = {}
    waiting = list(roots)
    while waiting:
        process = waiting.pop()
        if process.pid in found or process.pid in never:
            continue
        found[process.pid] = process
        waiting.extend(children.get(process.pid, ()))
    return list(found.values())


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
