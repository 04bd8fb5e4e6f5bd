"""How an incarnation ends: its stop signal, the grace, SIGKILL, a sweep of what escaped, and what is said then.

Two scans in a row that find nothing prove it. Every wait is bounded; a process in
uninterruptible sleep is reported, not waited for. Scans run in a thread: the loop stays free.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.node.listeners import read_listeners
from retinue.node.orders import Reaped
from retinue.node.scan import Process, is_running, send_signal
from retinue.node.threads import Threads
from retinue.node.tree import Tree, find_group, find_tree, hunt_orphans
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import Record
from retinue.terms.replica import Exited

SWEEP_LIMIT_S = 20.0
"""Longest a sweep goes on against something that keeps forking."""
GONE_LIMIT_S, HUNG_GONE_S = 5.0, 0.5
"""Longest wait for a process that got SIGKILL; the second where the run directory hangs."""
FREEZE_ROUNDS = 50
POLL_S = 0.01
POLL_MAX_S = 0.2
IN_USE = "in use"
RESERVED_HINT = (
    "[retinue: the port was held by this run's own reservation; a server that does not set SO_REUSEADDR"
    " needs `port_reuse: false`]"
)


@dataclass
class StopClock:
    """When the grace ends. A second order may only make it sooner."""

    number: int
    deadline_s: float
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def shorten(self, deadline_s: float) -> None:
        """End the grace sooner."""
        if deadline_s < self.deadline_s:
            self.deadline_s = deadline_s
            self.changed.set()


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did."""

    escapees: int = 0
    """Ended processes outside the leader's group."""
    killed: int = 0
    """All that were ended."""
    left: tuple[int, ...] = ()
    """Pids that would not go."""


@dataclass(frozen=True, slots=True)
class Leader:
    """What the ladder needs to know and do about the leader."""

    signal_group: Callable[[int], None]
    """Asks the keeper: it alone knows that the leader's pid is still the leader's."""
    gone: asyncio.Event
    """Set when the keeper reaped it."""


async def stop_group(
    clock: StopClock, leader: Leader, tree: Tree, threads: Threads, is_hung: Callable[[], bool] = lambda: False
) -> bool:
    """Ask the group to end and kill it when the grace is over; True when SIGKILL was needed.

    The leader may be the first to go: the rest of its group keeps the grace.
    """
    leader.signal_group(clock.number)
    # A stopped process gets its signals only when it runs again.
    leader.signal_group(signal.SIGCONT)
    await _wait_for_leader(clock, leader)
    if leader.gone.is_set():
        return not await _wait_for_group(clock, tree, threads)
    leader.signal_group(signal.SIGKILL)
    try:
        async with asyncio.timeout(HUNG_GONE_S if is_hung() else GONE_LIMIT_S):
            await leader.gone.wait()
    except TimeoutError:
        pass
    return True


async def _wait_for_group(clock: StopClock, tree: Tree, threads: Threads) -> bool:
    """Wait until the rest of the group is gone; False when the grace ended before."""
    loop = asyncio.get_running_loop()
    poll_s = POLL_S
    while await threads.run(find_group, tree):
        if loop.time() >= clock.deadline_s:
            return False
        await asyncio.sleep(poll_s)
        poll_s = min(poll_s * 2, POLL_MAX_S)
    return True


async def _wait_for_leader(clock: StopClock, leader: Leader) -> None:
    loop = asyncio.get_running_loop()
    while not leader.gone.is_set() and (left_s := clock.deadline_s - loop.time()) > 0:
        clock.changed.clear()
        waits = [asyncio.ensure_future(event.wait()) for event in (leader.gone, clock.changed)]
        try:
            await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


async def sweep_tree(tree: Tree, threads: Threads, is_hung: Callable[[], bool] = lambda: False) -> Swept:
    """End everything of the incarnation that still runs.

    All that is found is stopped first, until a scan finds nothing new: a stopped process
    cannot fork, so a bomb of setsid children is caught whole. Then all are killed.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + SWEEP_LIMIT_S
    ended: dict[tuple[int, int], Process] = {}
    left: dict[tuple[int, int], Process] = {}
    empty_scans = hunted = 0
    while empty_scans < 2 and loop.time() < deadline_s:
        found = await threads.run(freeze_tree, tree, frozenset(left))
        if not found:
            # What forks and exits faster than a scan reads is not in it.
            links = await threads.run(hunt_orphans, tree)
            hunted += links
            empty_scans = 0 if links else empty_scans + 1
            continue
        empty_scans = 0
        await threads.run(_kill_all, found)
        ended.update((_key(process), process) for process in found)
        left.update((_key(process), process) for process in await _wait_gone(found, threads, is_hung))
    if empty_scans < 2:
        stubborn = await threads.run(find_tree, tree)
        left.update((_key(process), process) for process in stubborn)
    outside = [p for p in ended.values() if tree.leader not in (p.pid, p.group)]
    killed = len(ended) + hunted
    return Swept(escapees=len(outside) + hunted, killed=killed, left=tuple(sorted(p.pid for p in left.values())))


def freeze_tree(tree: Tree, known: frozenset[tuple[int, int]] = frozenset()) -> list[Process]:
    """SIGSTOP all of the tree until nothing new appears; what is `known` already is left out."""
    frozen: dict[tuple[int, int], Process] = {}
    for _ in range(FREEZE_ROUNDS):
        fresh = [p for p in find_tree(tree) if _key(p) not in frozen and _key(p) not in known]
        if not fresh:
            break
        for process in fresh:
            send_signal(process, signal.SIGSTOP)
            frozen[_key(process)] = process
    return list(frozen.values())


def _kill_all(processes: list[Process]) -> None:
    for process in processes:
        send_signal(process, signal.SIGKILL)


async def _wait_gone(processes: list[Process], threads: Threads, is_hung: Callable[[], bool]) -> list[Process]:
    """Wait until all are gone or zombies; those that are not when the time is over."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + (HUNG_GONE_S if is_hung() else GONE_LIMIT_S)
    poll_s = POLL_S
    while True:
        processes = await threads.run(_find_alive, processes)
        if not processes or loop.time() >= deadline_s:
            return processes
        await asyncio.sleep(poll_s)
        poll_s = min(poll_s * 2, POLL_MAX_S)


def _find_alive(processes: list[Process]) -> list[Process]:
    return [process for process in processes if is_running(process)]


def _key(process: Process) -> tuple[int, int]:
    return process.pid, process.start


# --- what is said about it ----------------------------------------------------------------


class End(Record, frozen=True):
    """How it went, from the ladder and the sweep."""

    reaped: Reaped | None
    """None: the leader itself would not die."""
    swept: Swept
    was_asked: bool
    is_killed_hard: bool
    lived_s: float
    last_lines: str


def build_exited(spec: LaunchSpec, end: End, pids: tuple[int, int], *, has_namespace: bool) -> Exited:
    """Say how an incarnation ended.

    Shape: `pids` is the leader's (pid here, host pid); what is left is named by host pid where that is known.
    """
    pid, host_pid = pids
    left = {host_pid if number == pid and host_pid else number for number in end.swept.left}
    if end.reaped is None:
        left.add(host_pid or pid)
    was_pushed = end.was_asked or bool(end.swept.killed)
    return Exited(
        incarnation=spec.incarnation,
        code=end.reaped.code if end.reaped else None,
        signal=end.reaped.signal if end.reaped else None,
        was_asked=end.was_asked,
        is_quick=not end.was_asked and end.lived_s < spec.okay_delay_s,
        last_lines=end.last_lines,
        rung=("namespace" if has_namespace else "subreaper") if was_pushed else "",
        is_killed_hard=end.is_killed_hard,
        escapees=end.swept.escapees,
        left=tuple(sorted(left)),
    )


def judge_port(port: int, last_lines: str, *, was_reserved: bool) -> tuple[bool, str]:
    """Say whether a stranger has the port of a tree that is gone, and what to add to its last lines."""
    if read_listeners(port):
        return True, last_lines
    if was_reserved and IN_USE in last_lines:
        return False, f"{last_lines}\n{RESERVED_HINT}"
    return False, last_lines
