"""How a tree ends: what is stopped is woken first, and one empty look at /proc proves nothing.

No real process can be reached from here, whatever the ladder comes to do: these pids are above any
kernel's, the tag is nobody's, and there is no reaper whose children could be taken for ours.
"""

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from retinue.node import ladder
from retinue.node.ladder import Leader, StopClock, Swept, stop_group, sweep_tree
from retinue.node.scan import Process
from retinue.node.tree import Tree

NO_PID = 2**22
"""PID_MAX_LIMIT, proc_sys_kernel(5): the kernel's pids are all below it."""
TREE = Tree(leader=NO_PID + 1, leader_start=1, tags=frozenset({b"RETINUE_TEST_TAG=nobody has this"}), reaper=0)
ESCAPEE = Process(pid=NO_PID + 2, ppid=1, group=NO_PID + 2, session=NO_PID + 2, state="S", start=2)


class Inline:
    """Runs the scans where it is called."""

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


class Machine:
    """A /proc in which the escapee is overlooked by so many looks."""

    def __init__(self, overlooked: int) -> None:
        self.overlooked = overlooked
        self.signals: list[int] = []

    @property
    def is_alive(self) -> bool:
        return signal.SIGKILL not in self.signals

    def find_tree(self, tree: Tree) -> list[Process]:
        self.overlooked -= 1
        return [ESCAPEE] if self.overlooked < 0 and self.is_alive else []

    def is_running(self, process: Process) -> bool:
        return self.is_alive

    def send_signal(self, process: Process, number: int) -> bool:
        self.signals.append(number)
        return True

    def hunt_orphans(self, tree: Tree) -> int:
        return 0


@pytest.mark.parametrize("overlooked", [0, 1])
async def test_a_process_that_one_scan_overlooks_is_found_by_the_next(
    monkeypatch: pytest.MonkeyPatch, overlooked: int
) -> None:
    machine = Machine(overlooked)
    for name in ("find_tree", "is_running", "send_signal", "hunt_orphans"):
        monkeypatch.setattr(ladder, name, getattr(machine, name))
    assert await sweep_tree(TREE, Inline()) == Swept(escapees=1, killed=1)  # type: ignore[arg-type]
    assert machine.signals == [signal.SIGSTOP, signal.SIGKILL]


class StoppedLeader:
    """A leader that was stopped with SIGSTOP: all signals but two wait until it is continued."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.waiting: list[int] = []

    def signal_group(self, number: int) -> None:
        self.waiting.append(number)
        if number == signal.SIGKILL or (number == signal.SIGCONT and signal.SIGTERM in self.waiting):
            self.gone.set()


async def test_a_stopped_leader_dies_of_its_stop_signal_and_not_of_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "find_group", lambda tree: [])
    leader = StoppedLeader()
    clock = StopClock(signal.SIGTERM, asyncio.get_running_loop().time() + 0.5)
    is_killed_hard = await stop_group(clock, Leader(leader.signal_group, leader.gone), TREE, Inline())  # type: ignore[arg-type]
    assert not is_killed_hard
