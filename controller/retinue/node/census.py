"""Who of a node launch still runs, and how to end all of it where no namespace does.

A process belongs to the node when it descends from keeper or outer process (both
are subreapers there), or when its environment carries both tags. Never by name,
never another user's, never a process that was named as ours to spare.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from retinue.node.scan import DEAD_STATES, read_process, read_processes

RUN_ID = "RETINUE_RUN_ID"
NODE = "RETINUE_NODE"
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
    mine = {pid for pid in processes if pid not in census.spared and _has_tags(pid, census.tags)}
    if census.root:
        mine |= _find_descendants({pid: process.ppid for pid, process in processes.items()}, census)
    return {pid for pid in mine if processes[pid].state not in DEAD_STATES}


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
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                _signal(pid, number)
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
    path = f"/proc/{census.root}/task/{census.root}/children"
    while census.root and time.monotonic() < deadline_s:
        try:
            with open(path, encoding="ascii") as file:
                children = {int(word) for word in file.read().split()} - census.spared
        except (OSError, ValueError):  # A kernel without CONFIG_PROC_CHILDREN; the full scans do it alone.
            return
        if not any(_is_killable(pid) for pid in children):
            return
        for pid in children:
            _signal(pid, signal.SIGKILL)
        reap()


def _is_killable(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state not in DEAD_STATES | {"D"}


def _find_descendants(parents: dict[int, int], census: Census) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(children.get(census.root, ()))
    while waiting:
        pid = waiting.pop()
        if pid not in census.spared and pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def _has_tags(pid: int, tags: frozenset[bytes]) -> bool:
    """No tags match nobody: what is found here is killed."""
    if not tags:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return tags <= set(file.read().split(b"\0"))
    except OSError:  # Gone, or another user's.
        return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
