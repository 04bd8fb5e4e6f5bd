"""Runs a command in a sandbox to its end and says what became of it.

Ends exactly once, whatever the command, its children, its caller or the sandbox do. Nothing that runs inside brings
about `infra_failed`.
"""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

from retinue.sandbox.box import Ended, Running
from retinue.sandbox.exec_output import Kept, PipeReader, PipeWriter
from retinue.sandbox.exec_records import ExecOutcome, ExecRequest, ExecResult, KeptBytes, ProcessView
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.shard_box import LiveBox
from retinue.sandbox.wire import Why
from retinue.terms.record import replace

NOT_FOUND, NOT_RUN = 127, 126
KILL_S = 2.0
"""How long a tree may take to be gone once it was killed."""
_PAGE_BYTES = 4096

Sink = Callable[[str, bytes], None]
"""Takes what a stream carries as it comes: `stdout` or `stderr`, and the bytes."""


class Command:
    """One command of a sandbox. `run` it once."""

    def __init__(self, live: LiveBox, request: ExecRequest, argv: list[str], kept: KeptBytes, node: str) -> None:
        self._live = live
        self._request = request
        self.argv = argv
        self._node = node
        self._timeout_s = find_timeout(request, live.limits.wall)
        self._cpu_s = int(request.cpu_s or live.limits.cpu or 0)
        self.stdout, self.stderr = Kept(kept), Kept(kept)
        self.sink: Sink | None = None
        """Gets the output beside what is kept."""
        self.readers: dict[str, PipeReader] = {}
        self.stdin: PipeWriter | None = None
        self.running: Running | None = None
        self.started_utc = time.time()
        self._started_s = 0.0
        self.result: ExecResult | None = None
        """None while it runs."""
        self.after: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Done once it has ended, without having anybody wait."""
        self._after: set[asyncio.Task[Any]] = set()

    async def run(self) -> ExecResult:
        """Start it and wait for its end; who cancels this ends its tree.

        Errors: Fault when the sandbox was taken away meanwhile by somebody who may.
        """
        self._started_s = time.monotonic()
        self._live.running_count += 1
        try:
            self.result = await self._run_once()
        finally:
            self._live.running_count -= 1
            self._close()
            if self.after is not None:
                self._later(self.after())
        return self.result

    def view(self, name: str, wants_output: bool) -> ProcessView:
        """Show it as it is now."""
        shown = self.result or ExecResult(None, wall_s=self._wall_s(), node=self._node)
        if wants_output:
            shown = replace(shown, stdout=self.stdout.build_output(), stderr=self.stderr.build_output())
        else:
            shown = replace(shown, stdout=None, stderr=None)
        return ProcessView(name, self.argv, "running" if self.result is None else "ended", self.started_utc, shown)

    async def kill(self) -> int:
        """End its whole tree; gives how many were left. Errors: LinkLost."""
        return await self.running.kill(KILL_S) if self.running is not None else 0

    # --- one run ------------------------------------------------------------------------

    async def _run_once(self) -> ExecResult:
        is_late, left, ended = False, 0, None
        try:
            self.running = self._start()
            try:
                async with asyncio.timeout(self._timeout_s):
                    ended = await self.running.wait()
            except TimeoutError:
                is_late, left = True, await self.running.kill(KILL_S)
                ended = await self._take_end(self.running)
            except asyncio.CancelledError:
                self._later(self.running.kill(KILL_S))
                raise
            self._finish_output()
            if not is_late and not self._request.keep_tree:
                self._later(self.running.kill(KILL_S))
            if (is_late or (ended is not None and ended.exit_code)) and not await self._live.has_image():
                return await self._build_lost(ended)
            return await self._judge(ended, is_late, left)
        except Refused as refused:
            if not await self._live.has_image():
                return await self._build_lost(None)
            return self._build_not_run(refused)
        except LinkLost:
            self._finish_output()
            return await self._build_lost(ended)

    def _start(self) -> Running:
        """Make the pipes and start it. Errors: LinkLost, WireError."""
        request = self._request
        for name, kept in (("stdout", self.stdout), ("stderr", self.stderr)):
            self.readers[name] = PipeReader(self._build_taker(name, kept))
        given = request.stdin.encode("utf-8", "replace") if request.stdin is not None else request.stdin_base64
        if given is not None or request.stdin_open:
            self.stdin = PipeWriter(given or b"", request.stdin_open)
        running = self._live.box.start(
            self.argv,
            cwd=request.cwd or self._live.workdir,
            env=request.env,
            stdin=self.stdin.read_fd if self.stdin else -1,
            stdout=self.readers["stdout"].write_fd,
            stderr=self.readers["stderr"].write_fd,
            cpu_s=self._cpu_s,
        )
        for reader in self.readers.values():
            reader.close_write_end()
        if self.stdin is not None:
            self.stdin.close_read_end()
        return running

    def _build_taker(self, name: str, kept: Kept) -> Callable[[bytes], None]:
        def take(data: bytes) -> None:
            kept.add(data)
            if self.sink is not None:
                self.sink(name, data)

        return take

    async def _take_end(self, running: Running) -> Ended | None:
        """How a killed command ended; None when the kernel still holds it."""
        try:
            return await asyncio.wait_for(running.wait(), KILL_S)
        except TimeoutError:
            return None

    def _finish_output(self) -> None:
        for reader in self.readers.values():
            reader.finish()

    def _close(self) -> None:
        for reader in self.readers.values():
            reader.close()
        if self.stdin is not None:
            self.stdin.close()

    def _later(self, work: Coroutine[Any, Any, object]) -> None:
        """Do it without having anybody wait: the sandbox obeys in order, so the next command comes after it."""
        task = asyncio.ensure_future(_without_loss(work))
        self._after.add(task)
        task.add_done_callback(self._after.discard)

    def _wall_s(self) -> float:
        return round(time.monotonic() - self._started_s, 6) if self._started_s else 0.0

    # --- from how it ended to an outcome --------------------------------------------------

    async def _judge(self, ended: Ended | None, is_late: bool, left: int) -> ExecResult:
        if ended is None:
            return self._build(ExecOutcome.TIMED_OUT, cause="ran past its wall limit", left=left)
        code = ended.exit_code
        outcome, cause = ExecOutcome.SIGNALLED if code < 0 else ExecOutcome.EXITED, ""
        if ended.why is Why.MEMORY:
            outcome, cause = ExecOutcome.MEMORY_EXCEEDED, f"the sandbox used more than {self._live.limits.memory} bytes"
        elif is_late:
            outcome, cause = ExecOutcome.TIMED_OUT, f"ran past its wall limit of {self._timeout_s:g} s"
        elif self._is_out_of_cpu(ended):
            outcome, cause = ExecOutcome.TIMED_OUT, f"ran past its CPU limit of {self._cpu_s} s"
        elif code and (full := await self._find_full(code)):
            outcome, cause = ExecOutcome.DISK_FULL, full
        return self._build(outcome, ended, cause, left)

    def _is_out_of_cpu(self, ended: Ended) -> bool:
        if not self._cpu_s or ended.exit_code >= 0:
            return False
        number = -ended.exit_code
        return number == signal.SIGXCPU or (number == signal.SIGKILL and ended.cpu_s >= self._cpu_s)

    async def _find_full(self, code: int) -> str:
        """Say what the sandbox has no room for, after a command that failed; empty: it has room."""
        usage = await self._live.box.read_usage()
        if usage.disk_max_bytes and usage.disk_bytes + _PAGE_BYTES > usage.disk_max_bytes:
            return f"no room left of {usage.disk_max_bytes} bytes"
        if usage.inode_max_count and usage.inode_count >= usage.inode_max_count:
            return f"no room left for more than {usage.inode_max_count} files"
        return "a file grew beyond its limit" if code == -signal.SIGXFSZ else ""

    def _build_not_run(self, refused: Refused) -> ExecResult:
        """It never ran, as when a shell cannot run something: the policy's own doing, whatever the reason."""
        cause = f"cannot run {self.argv[0][:200]!r}: {os.strerror(refused.errno)} ({refused.step})"
        code = NOT_FOUND if refused.errno == errno.ENOENT else NOT_RUN
        return self._build(ExecOutcome.EXITED, cause=cause, code=code)

    async def _build_lost(self, ended: Ended | None) -> ExecResult:
        ending = await self._live.wait_ended()
        if ending.type == "infra_failed":
            return self._build(ExecOutcome.INFRA_FAILED, ended, ending.cause)
        if ending.type == "sandbox_killed":
            return self._build(ExecOutcome.MEMORY_EXCEEDED, ended, ending.cause)
        raise self._live.build_fault()

    def _build(
        self,
        outcome: ExecOutcome,
        ended: Ended | None = None,
        cause: str = "",
        left: int = 0,
        code: int | None = None,
    ) -> ExecResult:
        status = None if ended is None or outcome is ExecOutcome.INFRA_FAILED else ended.exit_code
        return ExecResult(
            outcome=outcome,
            code=code if status is None or status < 0 else status,
            signal=-status if status is not None and status < 0 else None,
            stdout=self.stdout.build_output() if self.sink is None else None,
            stderr=self.stderr.build_output() if self.sink is None else None,
            cause=cause,
            cpu_s=0.0 if ended is None else ended.cpu_s,
            max_rss_bytes=0 if ended is None else ended.max_rss_kib * 1024,
            wall_s=self._wall_s(),
            left=left,
            node=self._node,
        )


def find_timeout(request: ExecRequest, wall_s: float) -> float | None:
    """Say how long a command may run; None: for ever, which only background commands may."""
    if request.background:
        return request.timeout_s
    return wall_s if request.timeout_s is None else min(request.timeout_s, wall_s)


def find_kept(request: ExecRequest, default_bytes: int, most_bytes: int) -> KeptBytes:
    """Say how much of each stream is kept."""
    asked = default_bytes if request.output is None else request.output
    if isinstance(asked, int):
        total = max(0, min(asked, most_bytes))
        return KeptBytes(total - total // 2, total // 2)
    return KeptBytes(max(0, min(asked.head, most_bytes)), max(0, min(asked.tail, most_bytes)))


async def _without_loss(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except (LinkLost, Refused):
        pass  # The sandbox is gone, and its processes with it.
