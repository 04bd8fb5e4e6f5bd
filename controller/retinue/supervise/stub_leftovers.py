"""Find and end what the run left on this host, and prove that it is gone.

A process is ours when it descends from the stub (a subreaper, so orphans do) or
carries the run's id in its environment. Never the stub, never its ancestors,
never another user's, never by name. Standard library only.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from retinue.node import scan
from retinue.node.scan import is_doomed, is_running, send_signal

TERM_GRACE_S = 2.0
SETTLE_S, HUNG_SETTLE_S = 1.0, 0.3
"""What is just about to exit by itself was not left behind; the second where the run directory hangs."""
KILL_LIMIT_S = 10.0
"""A process that outlives this many seconds of SIGKILL is stuck in the kernel: reported, not waited for."""
QUIET_S = 0.2
"""No child for this long, looked for all the time: nobody is being born any more."""
PAUSE_S = 0.002
CMD_CHARS = 80


class Leftover:
    """One process, by pid and start time so that a reused pid is told apart."""

    __slots__ = ("cmd", "pid", "start")

    def __init__(self, pid: int, start: int, cmd: str) -> None:
        self.pid = pid
        self.start = start
        """Clock ticks after boot; proc(5), field 22."""
        self.cmd = cmd

    def pack(self) -> tuple[int, int, str]:
        """What crosses a pipe."""
        return self.pid, self.start, self.cmd


def read_command(process: scan.Process) -> str:
    """Read the first characters of its command line; its name where there is none. May block."""
    words = b" ".join(scan.read_words(process.pid, "cmdline")).decode(errors="replace").strip()
    return (words or process.name)[:CMD_CHARS]


def scan_left(
    stub: int,
    tag: bytes | None,
    spared: Iterable[int] = (),
    spared_tag: bytes | None = None,
    has_commands: bool = True,
) -> list[Leftover]:
    """List what the run has on this host beside the stub.

    Shape:  zombies are not listed; `cmd` is the command line. `spared` pids and their descendants, and what carries
            `spared_tag`, are left out. Without a tag only descendants of the stub are looked for; with neither tag
            nor commands nothing that can block is read.
    """
    table = scan.read_processes()
    never = scan.find_ancestors(table, stub) | set(spared) | scan.find_descendants(table, spared) | {os.getpid()}
    ours = scan.find_descendants(table, [stub])
    if tag:
        ours |= {pid for pid in table if pid not in ours and pid not in never and _has_tag(pid, tag)}
    left = [table[pid] for pid in sorted(ours - never) if not table[pid].is_dead]
    if spared_tag:
        left = [process for process in left if not _has_tag(process.pid, spared_tag)]
    return [Leftover(p.pid, p.start, read_command(p) if has_commands else p.name) for p in left]


def _has_tag(pid: int, tag: bytes) -> bool:
    """Say whether the process is of our uid and was started with `NAME=VALUE` in its environment. May block."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return False
    except OSError:
        return False
    return bool(scan.has_tags(pid, frozenset([tag])))


Scan = Callable[[], list[Leftover]]
Wait = Callable[[Callable[[], bool], float], bool]
"""(condition, limit_s) -> whether it came true; reaps children meanwhile."""


def hunt_children(stub: int, spared: Collection[int], wait: Wait) -> int:
    """Kill the stub's children, over and over, until none was there for a while; return how many were killed.

    A chain of processes that each fork and exit lands on the subreaper link by link, and two looks at all of /proc
    can both come between two links. Reading one small file every few milliseconds does not.
    """
    now_s = time.monotonic()
    end_s, quiet_s = now_s + KILL_LIMIT_S, now_s + QUIET_S
    killed: set[int] = set()
    while now_s < min(end_s, quiet_s):
        for pid in scan.read_children(stub):
            process = None if pid in spared else scan.read_process(pid)
            if process is not None and not process.is_dead and not is_doomed(process):
                send_signal(process, signal.SIGKILL)
                killed.add(pid)
                quiet_s = now_s + QUIET_S
        wait(lambda: False, PAUSE_S)
        now_s = time.monotonic()
    return len(killed)


def end_left(
    look: Scan, wait: Wait, hunt: Callable[[], int], is_hung: bool = False, is_hurried: bool = False
) -> tuple[list[Leftover], list[Leftover]]:
    """End everything a look finds: TERM, a grace, KILL, until two looks in a row are empty and the hunt finds nobody.

    Shape: (what was found at first or later, what would not die). Where the run directory hangs, what has had its
           SIGKILL and is still there is not waited for. In a hurry (Slurm has signalled all of the job, and kills it
           soon) everything has had its TERM: the verdict must be written before we are killed too.
    """
    found = look()
    if found:
        wait(lambda: not any(map(is_running, found)), HUNG_SETTLE_S if is_hung or is_hurried else SETTLE_S)
        found = look()
    for process in found:
        send_signal(process, signal.SIGTERM)
        send_signal(process, signal.SIGCONT)
    wait(lambda: all(map(is_doomed, found)), 0.0 if is_hurried else TERM_GRACE_S)
    seen = {(process.pid, process.start): process for process in found}
    give_up_s = time.monotonic() + KILL_LIMIT_S
    empty = 0
    left: list[Leftover] = []
    while empty < 2 and time.monotonic() < give_up_s:
        left, was_any_able = kill_all(look)
        seen.update({(process.pid, process.start): process for process in left})
        empty = 0 if hunt() or left else empty + 1
        if is_hung and left and not was_any_able:
            break
        wait(lambda: not any(map(is_running, left)), 0.5)  # noqa: B023 called before the next round
    return list(seen.values()), [process for process in left if is_running(process)]


def kill_all(look: Scan) -> tuple[list[Leftover], bool]:
    """Stop everything, look again, kill: what forks faster than we look is caught standing still.

    Shape: (what there is, whether any of it could still do something).
    """
    first = look()
    able = [process for process in first if not is_doomed(process)]
    if not able:
        return first, False
    for process in able:
        send_signal(process, signal.SIGSTOP)
    left = look()
    for process in left:
        send_signal(process, signal.SIGKILL)
    return left, True
