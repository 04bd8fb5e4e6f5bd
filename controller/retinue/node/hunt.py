"""Catch a chain of processes that each fork and exit at once: no scan of all of /proc ever sees one alive.

Every link of such a chain becomes a child of the keeper for part of its short life.
A loop that reads that one small file is faster than a link lives.
"""

import os
import signal
import time
from collections.abc import Iterable

from retinue.node.scan import Tree, has_tags

QUIET_S = 0.03
"""No link seen for this long: there is no chain. A link lives for about a millisecond."""
LIMIT_S = 2.0
PAUSE_S = 0.0002


def hunt_orphans(tree: Tree) -> int:
    """Kill the keeper's children that carry this incarnation's tags, until none was seen for a while; how many."""
    now_s = time.monotonic()
    end_s, quiet_s = now_s + LIMIT_S, now_s + QUIET_S
    settled = set(tree.never)
    """Pids that need no second look: strangers, and what is killed already."""
    killed = 0
    while now_s < min(end_s, quiet_s):
        count = sum(_kill_if_ours(pid, tree, settled) for pid in _read_children(tree.reaper) if pid not in settled)
        time.sleep(PAUSE_S)
        now_s = time.monotonic()
        if count:
            killed += count
            quiet_s = now_s + QUIET_S
    return killed


def _kill_if_ours(pid: int, tree: Tree, settled: set[int]) -> bool:
    # The pidfd comes first: what is read and signalled after it is that process or nothing.
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        is_ours = has_tags(pid, tree.tags)
        if is_ours is not None:
            settled.add(pid)
        if not is_ours:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _read_children(parent: int) -> Iterable[int]:
    """Read a process's children; none where the kernel does not tell (CONFIG_PROC_CHILDREN)."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []
