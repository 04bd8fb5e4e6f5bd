"""Which processes are of one incarnation, and the hunt for those that no scan sees. Never by name.

A process belongs to it when it descends from the leader, is in the leader's
session or group, carries the incarnation's tags in its environment, or writes
into its log pipe; so does everything that descends from such a process.
"""

import os
import signal
import time
from dataclasses import dataclass, field

from retinue.node import kernel
from retinue.node.environment import build_tags
from retinue.node.scan import (
    Process,
    find_descendants,
    has_tags,
    read_children,
    read_process,
    read_processes,
)
from retinue.node.site import Site
from retinue.terms.launch import LaunchSpec

QUIET_S = 0.03
"""No link seen for this long: there is no chain. A link lives for about a millisecond."""
HUNT_LIMIT_S = 2.0
PAUSE_S = 0.0002


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


def build_tree(site: Site, spec: LaunchSpec, pid: int, log_pipe: int) -> Tree:
    """Name the marks by which the processes of an incarnation are found."""
    tags = build_tags(spec, site.join.run_id)
    leader = read_process(pid)
    return Tree(
        leader=pid,
        leader_start=leader.start if leader is not None else 0,
        tags=frozenset(f"{name}={value}".encode() for name, value in tags.items()),
        log_inode=os.fstat(log_pipe).st_ino,
        never=site.never,
        reaper=site.keeper_pid,
    )


def find_tree(tree: Tree) -> list[Process]:
    """Find everything of the incarnation that still runs (zombies do not)."""
    processes = read_processes()
    roots = _find_roots(processes, tree)
    found = (processes[pid] for pid in roots | find_descendants(processes, roots, tree.never))
    return [process for process in found if not process.is_dead]


def find_group(tree: Tree) -> list[Process]:
    """Find what still runs of the leader's process group and session."""
    processes = read_processes()
    return [p for p in _find_session(processes, tree) if not p.is_dead]


def _find_session(processes: dict[int, Process], tree: Tree) -> list[Process]:
    if not tree.leader:
        return []
    holder = processes.get(tree.leader)
    if holder is not None and tree.leader_start and holder.start != tree.leader_start:
        # The kernel reuses a pid only when no group and no session has that number any more.
        return []
    return [p for p in processes.values() if tree.leader in (p.pid, p.group, p.session) and p.pid not in tree.never]


def _find_roots(processes: dict[int, Process], tree: Tree) -> set[int]:
    roots = {process.pid for process in _find_session(processes, tree)}
    owner = os.geteuid()
    for pid, process in processes.items():
        if pid in roots or pid in tree.never or process.is_dead:
            continue
        if _is_marked(pid, tree, owner):
            roots.add(pid)
    return roots


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


def _is_pipe(path: str, inode: int) -> bool:
    try:
        return os.readlink(path) == f"pipe:[{inode}]"
    except OSError:
        return False


# --- what forks and exits faster than a scan of all of /proc reads ------------------------


def hunt_orphans(tree: Tree) -> int:
    """Kill the keeper's children that carry this incarnation's tags, until none was seen for a while; how many.

    Every link of a chain of processes that each fork and exit at once becomes a child of the keeper for part of
    its short life. A loop that reads that one small file is faster than a link lives.
    """
    now_s = time.monotonic()
    end_s, quiet_s = now_s + HUNT_LIMIT_S, now_s + QUIET_S
    settled = set(tree.never)
    """Pids that need no second look: strangers, and what is killed already."""
    killed = 0
    while now_s < min(end_s, quiet_s):
        count = sum(_kill_if_ours(pid, tree, settled) for pid in read_children(tree.reaper) if pid not in settled)
        time.sleep(PAUSE_S)
        now_s = time.monotonic()
        if count:
            killed += count
            quiet_s = now_s + QUIET_S
    return killed


def _kill_if_ours(pid: int, tree: Tree, settled: set[int]) -> bool:
    # The pidfd comes first: what is read and signalled after it is that process or nothing.
    try:
        pidfd = kernel.open_pidfd(pid)
    except OSError:
        return False
    try:
        is_ours = has_tags(pid, tree.tags)
        if is_ours is not None:
            settled.add(pid)
        if not is_ours:
            return False
        kernel.signal_pidfd(pidfd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True
