"""What the processes of one check use, read from /proc. A process that is gone uses nothing."""

import os
import time

from retinue.terms.record import Record

PIDS_MAX = 256
"""A tree is read no further: more than any limit allows."""
TICK_S = 0.01
"""USER_HZ is 100 on every Linux we run on: proc_pid_stat(5)."""


class TreeUse(Record, frozen=True):
    """One look at one check's processes."""

    runnable: int = 0
    """Threads that run or want to."""
    cpu_s: float = 0.0
    """Of all that live, and of all that were reaped."""


def read_pid(pidfd: int) -> int:
    """Find the pid of a pidfd as our /proc names it; 0 when it has been reaped or cannot be seen.

    Source: pidfd_open(2): /proc/self/fdinfo/N has `Pid:`, -1 once reaped.
    """
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
            line = next((line for line in file if line.startswith("Pid:")), "Pid: 0")
    except OSError:
        return 0
    return max(int(line.split()[1]), 0)


def read_tree(root: int) -> TreeUse:
    """Add up the tree below and with this process."""
    runnable, cpu_s = 0, 0.0
    waiting = [root] if root > 0 else []
    seen = 0
    while waiting and seen < PIDS_MAX:
        pid = waiting.pop()
        seen += 1
        use = _read_process(pid)
        if use is not None:
            runnable += use.runnable
            cpu_s += use.cpu_s
            waiting += _read_children(pid)
    return TreeUse(runnable, cpu_s)


def _read_process(pid: int) -> TreeUse | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = sum(int(field) for field in fields[11:15])
    reaped_s = (int(fields[13]) + int(fields[14])) * TICK_S
    runnable = int(fields[0] == "R") if fields[17] == "1" else _count_threads(pid)
    return TreeUse(runnable, max(ticks * TICK_S, read_clock(pid) + reaped_s))


def _count_threads(pid: int) -> int:
    count = 0
    try:
        for name in os.listdir(f"/proc/{pid}/task")[:PIDS_MAX]:
            with open(f"/proc/{pid}/task/{name}/stat", encoding="ascii", errors="replace") as file:
                count += file.read().rpartition(")")[2].split()[0] == "R"
    except OSError:  # One thread, or all, ended while they were read.
        pass
    return count


def read_clock(pid: int) -> float:
    """Read one process's CPU clock, in a microsecond and to the nanosecond; 0 when it is gone.

    Source: clock_getcpuclockid(3): the clock's id is the inverted pid and the kind of clock.
    """
    if pid <= 0:  # The clock of pid 0 is the caller's own.
        return 0.0
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _read_children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
