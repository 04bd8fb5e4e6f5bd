"""Find and end what the run left on this host, and prove that it is gone.

A process is ours when it descends from the stub (a subreaper, so orphans do) or
carries the run's id in its environment. Never the stub, never its ancestors,
never another user's, never by name. Standard library only.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable

from retinue.node import kernel

TERM_GRACE_S = 2.0
SETTLE_S = 1.0
"""What is just about to exit by itself was not left behind."""
KILL_LIMIT_S = 10.0
"""A process that outlives this many seconds of SIGKILL is stuck in the kernel: reported, not waited for."""
CMD_CHARS = 80


class Process:
    """One process, by pid and start time so that a reused pid is told apart."""

    __slots__ = ("cmd", "parent", "pid", "start", "state")

    def __init__(self, pid: int, start: int, cmd: str, parent: int = 0, state: str = "") -> None:
        self.pid = pid
        self.start = start
        """Clock ticks after boot; proc(5), field 22."""
        self.cmd = cmd
        self.parent = parent
        self.state = state

    def pack(self) -> tuple[int, int, str]:
        """What crosses a pipe."""
        return self.pid, self.start, self.cmd


def read_process(pid: int) -> Process | None:
    """Read one process; None when it is gone. Reads only what cannot block."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name may hold blanks and brackets: the last ")" ends it.
    name, _, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    return Process(pid, int(fields[19]), name.decode(errors="replace"), int(fields[1]), fields[0].decode())


def read_table() -> dict[int, Process]:
    """Read every process of this host."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def find_descendants(table: dict[int, Process], roots: Iterable[int]) -> set[int]:
    """List what descends from the roots, the roots themselves left out."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    queue = list(roots)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def find_ancestors(table: dict[int, Process], pid: int) -> set[int]:
    """List the pid and all above it."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].parent
    return found


def has_tag(pid: int, tag: bytes) -> bool:
    """Say whether the process of our uid was started with `NAME=VALUE` in its environment.

    May block when the process is stuck in a page fault: call it where that is bounded.
    """
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            return tag in file.read().split(b"\0")
    except OSError:
        return False


def read_command(process: Process) -> str:
    """Read the first characters of its command line; its name where there is none. May block like `has_tag`."""
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:
            words = file.read(4 * CMD_CHARS).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = ""
    return (words or process.cmd)[:CMD_CHARS]


def scan_left(
    stub: int,
    tag: bytes | None,
    spared: Iterable[int] = (),
    spared_tag: bytes | None = None,
    has_commands: bool = True,
) -> list[Process]:
    """List what the run has on this host beside the stub.

    Shape:  zombies are not listed; `cmd` is the command line. `spared` pids and their descendants, and what carries
            `spared_tag`, are left out. Without a tag only descendants of the stub are looked for; with neither tag
            nor commands nothing that can block is read.
    """
    table = read_table()
    never = find_ancestors(table, stub) | set(spared) | find_descendants(table, spared) | {os.getpid()}
    ours = find_descendants(table, [stub])
    if tag:
        ours |= {pid for pid in table if pid not in ours and pid not in never and has_tag(pid, tag)}
    left = [table[pid] for pid in sorted(ours - never) if table[pid].state not in "ZX"]
    if spared_tag:
        left = [process for process in left if not has_tag(process.pid, spared_tag)]
    for process in left if has_commands else ():
        process.cmd = read_command(process)
    return left


def is_there(process: Process) -> bool:
    """Say whether this very process still runs (a zombie does not)."""
    now = read_process(process.pid)
    return now is not None and now.start == process.start and now.state not in "ZX"


def send_signal(process: Process, number: int) -> None:
    """Signal this very process: the pidfd is opened first and its owner checked after, so a reused pid gets nothing."""
    try:
        fd = kernel.open_pidfd(process.pid)
    except OSError:
        return
    try:
        if is_there(process):
            kernel.signal_pidfd(fd, number)
    except OSError:
        pass
    finally:
        os.close(fd)


Scan = Callable[[], list[Process]]
Wait = Callable[[Callable[[], bool], float], bool]
"""(condition, limit_s) -> whether it came true; reaps children meanwhile."""


def end_left(scan: Scan, wait: Wait) -> tuple[list[Process], list[Process]]:
    """End everything the scan finds: TERM, a grace, KILL, until two scans in a row are empty.

    Shape: (what was found at first or later, what would not die).
    """
    found = scan()
    if found:
        wait(lambda: not any(map(is_there, found)), SETTLE_S)
        found = scan()
    for process in found:
        send_signal(process, signal.SIGTERM)
        send_signal(process, signal.SIGCONT)
    wait(lambda: not any(map(is_there, found)), TERM_GRACE_S)
    seen = {(process.pid, process.start): process for process in found}
    give_up_s = time.monotonic() + KILL_LIMIT_S
    empty = 0
    left: list[Process] = []
    while empty < 2 and time.monotonic() < give_up_s:
        left = kill_all(scan)
        seen.update({(process.pid, process.start): process for process in left})
        empty = 0 if left else empty + 1
        wait(lambda: not any(map(is_there, left)), 0.5)  # noqa: B023 called before the next round
    return list(seen.values()), [process for process in left if is_there(process)]


def kill_all(scan: Scan) -> list[Process]:
    """Stop everything, look again, kill: what forks faster than we look is caught standing still."""
    first = scan()
    if not first:
        return []
    for process in first:
        send_signal(process, signal.SIGSTOP)
    left = scan()
    for process in left:
        send_signal(process, signal.SIGKILL)
    return left
