"""The services a keeper has started: their pids, their exits, and the descriptors held for them.

An incarnation stays here from before its exec until the agent releases it, however
many agents die in between. Nothing here reads a clock but for the exits file.
"""

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from retinue.node.descriptors import close_fds, read_body
from retinue.node.guard_role import GuardRole
from retinue.node.orders import Handover, Kept, Reaped, Release, Signal, Spawn, SpawnBody, Spawned, SpawnRefused
from retinue.node.spawn import WARNINGS, Child, Command, SpawnError, Step, poll_exec, spawn
from retinue.terms.record import DecodeError, Record, to_json

EXITS = "exits.jsonl"
Answers = list[Spawned | SpawnRefused | Reaped]


class ExitLine(Record, frozen=True):
    """One line of exits.jsonl."""

    replica: str
    incarnation: int
    code: int | None
    signal: int | None
    t: float
    """Epoch seconds."""


@dataclass(slots=True)
class KeptIncarnation:
    """One launch of a replica."""

    replica: str
    number: int
    child: Child
    host_pid: int
    body_fd: int
    held: dict[str, int]
    """Name -> descriptor, in the order the agent named them."""
    is_settled: bool = False
    """The exec succeeded; one that failed is not kept."""
    status: int | None = None
    """As waitpid gave it; None while the leader lives."""

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def fds(self) -> tuple[int, ...]:
        """What a handover carries."""
        return (self.body_fd, *self.held.values())

    def describe(self) -> Kept:
        code, number = _split_status(self.status)
        return Kept(
            self.replica, self.number, self.pid, self.host_pid, self.status is None, code, number, tuple(self.held)
        )

    def close(self) -> None:
        close_fds(self.fds)
        if not self.is_settled:
            os.close(self.child.status_fd)


@dataclass(slots=True)
class KeptTable:
    """All incarnations that are not released."""

    tags: dict[str, str]
    node_dir: Path
    ask_host_pid: Callable[[int], int]
    guard: GuardRole
    by_key: dict[tuple[str, int], KeptIncarnation] = field(default_factory=dict)

    def spawn(self, order: Spawn, fds: list[int]) -> Answers:
        """Fork an incarnation; takes the descriptors over. Its `Spawned` follows from `settle`.

        The same order again starts nothing and is answered with what is known.
        """
        known = self.by_key.get((order.replica, order.incarnation))
        if known is not None:
            close_fds(fds)
            return _say_again(known)
        if len(fds) != 2 + len(order.held):
            close_fds(fds)
            return [_refuse(order, errno.EBADMSG, f"{len(fds)} descriptors came, {2 + len(order.held)} were named")]
        body_fd, output_fd, *held = fds
        try:
            child = self._fork(order.replica, read_body(body_fd, SpawnBody), output_fd)
        except (SpawnError, DecodeError, OSError) as error:
            close_fds([body_fd, *held])
            return [_refuse(order, getattr(error, "errno", None) or errno.EINVAL, str(error))]
        finally:
            os.close(output_fd)  # The keeper must not be a writer, or the log pipe never ends.
        host_pid = self.ask_host_pid(child.pid)
        named = dict(zip(order.held, held, strict=True))
        incarnation = KeptIncarnation(order.replica, order.incarnation, child, host_pid, body_fd, named)
        self.by_key[order.replica, order.incarnation] = incarnation
        return []

    def _fork(self, replica: str, body: SpawnBody, output_fd: int) -> Child:
        env = {**body.env, **self.tags}
        ignored = WARNINGS if "SLURM_JOB_ID" in os.environ else ()
        command = Command(body.argv, env, cwd=body.cwd, stdout=output_fd, stderr=output_fd, ignored=ignored)
        expected = self.guard.expect(replica, body.egress)
        if expected is None:
            return spawn(command)
        step: Step = ("egress guard", expected.handover.install)
        try:
            child = spawn(command, steps=(step,))
        except SpawnError:
            expected.handover.close()
            raise
        self.guard.forked(expected, child.pid)
        return child

    def list_unsettled(self) -> list[KeptIncarnation]:
        """List incarnations whose exec is under way; their `child.status_fd` becomes readable."""
        return [incarnation for incarnation in self.by_key.values() if not incarnation.is_settled]

    def settle(self, incarnation: KeptIncarnation) -> Answers:
        """Read how the exec went; empty while it is still under way."""
        try:
            if not poll_exec(incarnation.child):
                return []
        except SpawnError as error:
            incarnation.is_settled = True
            self._forget(incarnation)
            return [SpawnRefused(incarnation.replica, incarnation.number, error.errno, str(error))]
        incarnation.is_settled = True
        return [Spawned(incarnation.replica, incarnation.number, incarnation.pid, incarnation.host_pid)]

    def take_exit(self, pid: int, status: int) -> Answers:
        """Note how a reaped child ended; empty when it is no leader of ours (an orphan, a failed exec)."""
        found = [kept for kept in self.by_key.values() if kept.pid == pid and kept.status is None]
        if not found:
            return []
        incarnation = found[0]
        answers = [] if incarnation.is_settled else self.settle(incarnation)
        if answers and isinstance(answers[0], SpawnRefused):
            return answers
        incarnation.status = status
        code, number = _split_status(status)
        self._write_exit(ExitLine(incarnation.replica, incarnation.number, code, number, time.time()))
        return [*answers, Reaped(incarnation.replica, incarnation.number, code, number)]

    def signal(self, order: Signal) -> None:
        """Signal the group of a leader that is not reaped yet; anything else could hit a stranger's pid."""
        incarnation = self.by_key.get((order.replica, order.incarnation))
        if incarnation is None or incarnation.status is not None:
            return
        try:
            os.killpg(incarnation.pid, order.number)
        except ProcessLookupError:
            # Between fork and setsid there is no group of its own yet.
            _kill(incarnation.pid, order.number)
        except OSError:
            return

    def release(self, order: Release) -> None:
        """Close what is held; forgets the incarnation when no names are given and its leader is gone.

        A living one is never forgotten: its exit would be nobody's.
        """
        incarnation = self.by_key.get((order.replica, order.incarnation))
        if incarnation is None:
            return
        if not order.names:
            if incarnation.status is not None:
                self._forget(incarnation)
            return
        for name in order.names:
            fd = incarnation.held.pop(name, None)
            if fd is not None:
                os.close(fd)

    def describe(self) -> tuple[Kept, ...]:
        return tuple(incarnation.describe() for incarnation in self.by_key.values())

    def build_handovers(self) -> list[tuple[Handover, KeptIncarnation]]:
        return [(Handover(kept.replica, kept.number), kept) for kept in self.by_key.values()]

    def is_kept(self, incarnation: KeptIncarnation) -> bool:
        return self.by_key.get((incarnation.replica, incarnation.number)) is incarnation

    def _forget(self, incarnation: KeptIncarnation) -> None:
        del self.by_key[incarnation.replica, incarnation.number]
        incarnation.close()

    def _write_exit(self, line: ExitLine) -> None:
        """A full disk costs the line, never the reaping."""
        try:
            fd = os.open(self.node_dir / EXITS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.write(fd, to_json(line) + b"\n")
        except OSError:
            pass
        finally:
            os.close(fd)


def _split_status(status: int | None) -> tuple[int | None, int | None]:
    """Exit code and signal of a wait status; exactly one is None once it ended."""
    if status is None:
        return None, None
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (None, -code)


def _say_again(known: KeptIncarnation) -> Answers:
    if not known.is_settled:
        return []
    answers: Answers = [Spawned(known.replica, known.number, known.pid, known.host_pid)]
    if known.status is not None:
        answers.append(Reaped(known.replica, known.number, *_split_status(known.status)))
    return answers


def _refuse(order: Spawn, number: int, cause: str) -> SpawnRefused:
    return SpawnRefused(order.replica, order.incarnation, number, cause)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass
