"""Who of a node launch still runs, and how to end all of it where no namespace does.

A process belongs to the node when it descends from keeper or outer process (both
are subreapers there), or when its environment carries all tags, which only its own
user and root can read. Never by name, never a process that was named as ours to spare.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from retinue.node.scan import (
    find_descendants,
    has_tags,
    kill_pids,
    read_children,
    read_process,
    read_processes,
)

RUN_ID = "RETINUE_RUN_ID"
NODE = "RETINUE_NODE"
LAUNCH_TAG = "RETINUE_LAUNCH"
"""In the environment of the launch and of what it starts on the nodes to keep them: outer process and janitor."""
_ROUND_S = 0.002


@dataclass(frozen=True, slots=True)
class Census:
    """What to look for."""

    tags: frozenset[bytes]
    """`NAME=value` entries that all must be in the environment."""
    spared: frozenset[int] = frozenset()
    """Pids that are ours and must not be counted: the caller, its janitor, its parent."""
    root: int = 0
    """Descendants of this process count, whatever their environment; 0: tags alone."""


def build_tags(run_id: str, node: str) -> dict[str, str]:
    """Name the environment that everything a keeper starts carries."""
    return {RUN_ID: run_id, NODE: node}


def build_census(tags: dict[str, str], spared: tuple[int, ...] = (), root: int = 0) -> Census:
    """Describe what belongs to a node; the caller is always spared."""
    entries = frozenset(f"{name}={value}".encode() for name, value in tags.items())
    return Census(entries, frozenset({os.getpid(), *spared}), root)


def find_left(census: Census) -> set[int]:
    """Find every running process of the node; zombies do not run."""
    processes = read_processes()
    mine = {pid for pid in processes if pid not in census.spared and has_tags(pid, census.tags)}
    if census.root:
        mine |= find_descendants(processes, [census.root], census.spared)
    return {pid for pid in mine if not processes[pid].is_dead}


def kill_left(census: Census, reap: Callable[[], None], limit_s: float) -> tuple[int, ...]:
    """Kill until two scans in a row find nothing; returns what would not die within the limit.

    Units:  limit_s on the monotonic clock; a process in D state is reported, never waited for beyond it.
    Shape:  `reap` collects the caller's dead children, so that orphans it inherits do not stay as zombies.
    """
    deadline_s = time.monotonic() + limit_s
    empty_scans = 0
    left: set[int] = set()
    while empty_scans < 2 and time.monotonic() < deadline_s:
        _hunt_children(census, reap, deadline_s)
        left = find_left(census)
        empty_scans = 0 if left else empty_scans + 1
        # Stopped first: a tree that forks faster than one pass kills it stands still while it is read again.
        kill_pids(left, signal.SIGSTOP)
        kill_pids(left)
        reap()
    return tuple(sorted(left))


def kill_namespace(reap: Callable[[], None], limit_s: float) -> bool:
    """Kill everything in the pid namespace whose pid 1 the caller is; True when nothing is left.

    kill(2): -1 means every process but the caller and pid 1. The kernel walks the list under its lock and a
    fork with a pending SIGKILL fails, so no fork bomb outruns it.
    """
    if os.getpid() != 1:  # Anywhere else -1 would be everything the user has on this host.
        raise RuntimeError("kill_namespace outside pid 1")
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return True
        reap()
        time.sleep(_ROUND_S)
    return False


def _hunt_children(census: Census, reap: Callable[[], None], deadline_s: float) -> None:
    """Kill direct children at once, over and over, until there are none.

    A chain of processes that each setsid, fork and exit lands on the subreaper link by link; only a pass far
    shorter than a link's life catches it, so this reads one small file per round and not all of /proc.
    """
    while census.root and time.monotonic() < deadline_s:
        # None where the kernel does not tell; the full scans do it alone then.
        children = set(read_children(census.root)) - census.spared
        if not any(map(_is_killable, children)):
            return
        kill_pids(children)
        reap()


def _is_killable(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and not process.is_exiting and process.state != "D"
