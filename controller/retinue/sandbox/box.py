"""One sandbox as the host sees it: commands, signals, its root directory, what it uses.

What a command prints never passes through here: the caller gives pipe ends (`output` collects from them). Only
pipes: a regular file of the host could be opened again, and cut short, from inside.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retinue.sandbox.config import BoxConfig
from retinue.sandbox.link import Answer, Link, LinkLost, read_refusal
from retinue.sandbox.wire import Kind, Target, Why, check_words

_KILL_PATIENCE_MS = 2000


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    why: Why
    """MEMORY: the sandbox went over its memory limit and this command was killed for it; KILLED: `Running.kill`."""
    status: int
    """As wait(2) gives it; for `os.waitstatus_to_exitcode`."""
    cpu_s: float
    """User and system time of the command and of what was reaped of its tree."""
    max_rss_kib: int
    """Of the largest process."""

    @property
    def exit_code(self) -> int:
        """0 to 255, or minus the signal."""
        return os.waitstatus_to_exitcode(self.status)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses now. Disk numbers are those of the whole file system when the upper layer is on a disk."""

    memory_bytes: int
    process_count: int
    disk_bytes: int
    disk_max_bytes: int
    inode_count: int
    inode_max_count: int


class Running:
    """A command that was started; made by `Box.start`."""

    def __init__(self, link: Link, number: int, future: asyncio.Future[Answer]) -> None:
        self._link = link
        self._future = future
        self.number = number

    async def wait(self) -> Ended:
        """Wait for the command itself; what it left running is not waited for, and lives on.

        Errors: Refused when it could not become the command (step and errno: ENOENT, EACCES, E2BIG, EAGAIN for
                pid_count, ...); LinkLost when the sandbox has gone.
        """
        message = (await asyncio.shield(self._future)).message
        cpu_s = (message.number(2) + message.number(3)) / 1e6
        return Ended(Why(message.number(1)), message.number(0), cpu_s, message.number(4))

    async def signal(self, number: int, target: Target = Target.LEADER) -> int:
        """Signal the command, its group, or all it started, also when it has ended itself; says how many were there."""
        return (await self._link.ask(Kind.SIGNAL, (self.number, number, target))).message.number(0)

    async def kill(self, patience_s: float = _KILL_PATIENCE_MS / 1000) -> int:
        """End everything that descends from the command, however it hid, also when it has ended itself.

        Shape:  0 once nothing of it lives; otherwise how many were left after patience_s (a process that the kernel
                holds dies when it lets go).
        """
        return (await self._link.ask(Kind.KILL, (self.number, int(patience_s * 1000)))).message.number(0)


class Box:
    """Made by `Zygote.create`."""

    def __init__(self, sock: socket.socket, config: BoxConfig) -> None:
        loop = asyncio.get_running_loop()
        self.config = config
        self.pid = 0
        """Of its pid 1, in our pid namespace."""
        self.gone: asyncio.Future[int] = loop.create_future()
        """Wait status of its pid 1 once the kernel has ended everything in it; -1 when its zygote went first."""
        self.memory_kills = 0
        """How often everything in it was killed for memory."""
        self._ready: asyncio.Future[None] = loop.create_future()
        self._link = Link(sock, self._hear, self._lose)

    @property
    def is_open(self) -> bool:
        """Whether it takes commands."""
        return self._link.is_open

    def start(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str | bytes = "/",
        env: Mapping[str, str] | None = None,
        stdin: int = -1,
        stdout: int = -1,
        stderr: int = -1,
        cpu_s: int = 0,
    ) -> Running:
        """Start a command; argv[0] is looked up in its own PATH.

        Shape:  env is added to the sandbox's; descriptors are pipe ends (-1: /dev/null), which stay the caller's to
                close; cpu_s limits each process of it (SIGXCPU, a second later SIGKILL).
        Errors: LinkLost, WireError; everything else by `Running.wait`.
        """
        words = [os.fsencode(word) for word in argv]
        merged = dict(self.config.env) | dict(env or {})
        variables = [os.fsencode(f"{name}={value}") for name, value in merged.items()]
        directory = os.fsencode(cwd)
        check_words([directory, *words, *variables])
        fds = (stdin, stdout, stderr)
        sent = sum(1 << place for place, fd in enumerate(fds) if fd >= 0)
        numbers = (len(words), len(variables), sent, cpu_s)
        posted = self._link.post(Kind.EXEC, numbers, [directory, *words, *variables], [fd for fd in fds if fd >= 0])
        return Running(self._link, *posted)

    async def open_root(self) -> int:
        """Open its "/" (O_PATH), ours to close: for openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS alone."""
        return (await self._link.ask(Kind.ROOT)).fd

    async def read_usage(self) -> Usage:
        """Ask what it uses now."""
        numbers = (await self._link.ask(Kind.STATS)).message.numbers
        return Usage(*numbers)

    def close(self) -> None:
        """Destroy it: all its processes, files and mounts. `gone` says when the kernel has done so."""
        self._link.close()
        self._lose()

    async def wait_ready(self) -> None:
        """Wait until it takes commands. Errors: Refused with the step of its setup, LinkLost."""
        await self._ready

    def end(self, status: int) -> None:
        """Its zygote says that it has ended."""
        self._link.close()
        self._lose()
        if not self.gone.done():
            self.gone.set_result(status)

    def _hear(self, answer: Answer) -> None:
        kind = answer.message.kind
        if kind is Kind.MEMORY:
            self.memory_kills += 1
        elif kind is Kind.READY and not self._ready.done():
            self.pid = answer.pid
            self._ready.set_result(None)
        elif kind is Kind.FAILED and not self._ready.done():
            self._ready.set_exception(read_refusal(answer.message))
            self._ready.exception()

    def _lose(self) -> None:
        if not self._ready.done():
            self._ready.set_exception(LinkLost("the sandbox has ended while it was set up"))
            self._ready.exception()


def describe_status(status: int) -> str:
    """Say a wait status in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
