"""Exec probes: a command in the replica's environment, run as a child of the keeper.

The agent has threads and so never forks; the keeper gives the command a session
of its own, reaps it, and ends it with the node. Whatever a probe leaves behind
carries the replica's tags and is swept with its incarnation.
"""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from retinue.node.descriptors import write_body
from retinue.node.keeper_link import Keeper
from retinue.node.orders import PROBE_MARK, Reaped, Release, Signal, Spawn, SpawnBody, Spawned, SpawnRefused
from retinue.node.probe import LATE_S, Answer
from retinue.terms.egress import EgressRule
from retinue.terms.replica import Verdict

OUTPUT_BYTES = 512
"""Pebble's cap for the details of a failed check."""
KEEPER_WAIT_S = 5.0
"""For an answer of the keeper; it restarts an agent after the same silence."""

AnswerPacket = Spawned | SpawnRefused | Reaped


class ProbeCommand(NamedTuple):
    """What is run."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    timeout_s: float
    egress: EgressRule | None = None
    """As its replica."""


def is_probe_name(name: str) -> bool:
    """Tell an exec probe from a replica among what the keeper holds."""
    return PROBE_MARK in name


class ExecProbes:
    """All exec probes of the node that are under way."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._running: dict[tuple[str, int], asyncio.Queue[AnswerPacket]] = {}

    def take(self, packet: AnswerPacket) -> None:
        """Take the keeper's word about a probe."""
        key = (packet.replica, packet.incarnation)
        if key in self._running:
            self._running[key].put_nowait(packet)
        elif isinstance(packet, Reaped):
            # Asked by an agent before this one, or given up after KEEPER_WAIT_S.
            self._keeper.send(Release(packet.replica, packet.incarnation))
        elif isinstance(packet, Spawned):
            self._keeper.send(Signal(packet.replica, packet.incarnation, signal.SIGKILL))

    def kill_left_over(self, name: str, number: int, *, is_alive: bool) -> None:
        """End a probe that an earlier agent had asked."""
        if is_alive:
            self._keeper.send(Signal(name, number, signal.SIGKILL))
        else:
            self._keeper.send(Release(name, number))

    async def ask(self, replica: str, kind: str, command: ProbeCommand, read_lag_s: Callable[[], float]) -> Answer:
        """Run the command once: exit code 0 passes, the timeout fails and kills its group."""
        name, number = f"{replica}{PROBE_MARK}{kind}", time.monotonic_ns()
        answers: asyncio.Queue[AnswerPacket] = asyncio.Queue()
        self._running[name, number] = answers
        try:
            return await self._run(name, number, command, answers, read_lag_s)
        except OSError as error:
            return Answer(Verdict.UNKNOWN, f"exec: {os.strerror(error.errno or 0)}")
        finally:
            del self._running[name, number]

    async def _run(
        self,
        name: str,
        number: int,
        command: ProbeCommand,
        answers: asyncio.Queue[AnswerPacket],
        read_lag_s: Callable[[], float],
    ) -> Answer:
        output = _Output()
        is_over = False
        try:
            self._spawn(name, number, command, output)
            first = await _next(answers, KEEPER_WAIT_S)
            if isinstance(first, SpawnRefused):
                is_over = True
                return _translate(first)
            if first is None:
                return Answer(Verdict.UNKNOWN, "the keeper does not answer")
            last = first if isinstance(first, Reaped) else await _next(answers, command.timeout_s)
            is_over = isinstance(last, Reaped)
            if isinstance(last, Reaped):
                self._keeper.send(Release(name, number))
                return _judge(command, last, output.text())
            if read_lag_s() > LATE_S:
                return Answer(Verdict.UNKNOWN, "this agent's own loop was late")
            return Answer(Verdict.FAIL, f"{command.argv[0]} did not end within {command.timeout_s:g} s")
        finally:
            if not is_over:
                await self._end(name, number, answers)
            output.close()

    def _spawn(self, name: str, number: int, command: ProbeCommand, output: "_Output") -> None:
        body = write_body(SpawnBody(argv=command.argv, env=command.env, cwd=command.cwd, egress=command.egress))
        try:
            self._keeper.send(Spawn(name, number), [body, output.write_end])
        finally:
            os.close(body)
            output.close_write_end()

    async def _end(self, name: str, number: int, answers: asyncio.Queue[AnswerPacket]) -> None:
        """Kill the probe's group and wait for it, also when this ask is cancelled."""
        self._keeper.send(Signal(name, number, signal.SIGKILL))
        while (packet := await _next(answers, KEEPER_WAIT_S)) is not None:
            if not isinstance(packet, Spawned):
                self._keeper.send(Release(name, number))
                return
            self._keeper.send(Signal(name, number, signal.SIGKILL))


class _Output:
    """What a probe prints: the first bytes kept, the rest read and thrown away."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        self._kept = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._take)

    def text(self) -> str:
        self._take()
        return self._kept.decode(errors="replace").strip()

    def close_write_end(self) -> None:
        os.close(self.write_end)

    def close(self) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)

    def _take(self) -> None:
        with suppress(BlockingIOError):
            part = os.read(self._read_end, 1 << 16)
            self._kept += part[: OUTPUT_BYTES - len(self._kept)]
            if not part:
                self._loop.remove_reader(self._read_end)


async def _next(answers: asyncio.Queue[AnswerPacket], timeout_s: float) -> AnswerPacket | None:
    try:
        return await asyncio.wait_for(answers.get(), timeout_s)
    except TimeoutError:
        return None


def _translate(refused: SpawnRefused) -> Answer:
    shortage = refused.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    return Answer(Verdict.UNKNOWN if shortage else Verdict.FAIL, refused.cause)


def _judge(command: ProbeCommand, end: Reaped, output: str) -> Answer:
    if end.code == 0:
        return Answer(Verdict.PASS)
    how = f"exited {end.code}" if end.code is not None else f"died of signal {end.signal}"
    return Answer(Verdict.FAIL, f"{command.argv[0]} {how}" + (f": {output}" if output else ""))
