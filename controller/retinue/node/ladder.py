"""How an incarnation ends: its stop signal, the grace, SIGKILL, and a sweep of what escaped.

Two scans in a row that find nothing prove it. Every wait is bounded; a process in
uninterruptible sleep is reported, not waited for. Scans run in a thread: the loop stays free.
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

from retinue.node.hunt import hunt_orphans
from retinue.node.scan import DEAD_STATES, Process, Tree, find_group, find_tree, read_process, send_signal
from retinue.node.threads import Threads

SWEEP_LIMIT_S = 20.0
"""Longest a sweep goes on against something that keeps forking."""
GONE_LIMIT_S = 5.0
"""Longest wait for a process that got SIGKILL."""
FREEZE_ROUNDS = 50
POLL_S = 0.01
POLL_MAX_S = 0.2


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


async def stop_group(clock: StopClock, leader: Leader, tree: Tree, threads: Threads) -> bool:
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
        async with asyncio.timeout(GONE_LIMIT_S):
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


async def sweep_tree(tree: Tree, threads: Threads) -> Swept:
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
        left.update((_key(process), process) for process in await _wait_gone(found, threads))
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


async def _wait_gone(processes: list[Process], threads: Threads) -> list[Process]:
    """Wait until all are gone or zombies; those that are not when the time is over."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + GONE_LIMIT_S
    poll_s = POLL_S
    while True:
        processes = await threads.run(_find_alive, processes)
        if not processes or loop.time() >= deadline_s:
            return processes
        await asyncio.sleep(poll_s)
        poll_s = min(poll_s * 2, POLL_MAX_S)


def _find_alive(processes: list[Process]) -> list[Process]:
    alive = []
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.start == process.start and now.state not in DEAD_STATES:
            alive.append(process)
    return alive


def _key(process: Process) -> tuple[int, int]:
    return process.pid, process.start
