"""Run a command in a sandbox and collect what it prints: bounded, and never waiting for who else holds the pipe."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retinue.sandbox.box import Box, Ended

_READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that was run to its end."""

    ended: Ended
    stdout: bytes
    stderr: bytes
    is_timed_out: bool


class Collector:
    """Reads one pipe as it fills; keeps the first bytes and counts the others, so that no writer ever blocks on us."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._loop = asyncio.get_running_loop()
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        self.kept = bytearray()
        self.dropped_bytes = 0
        self._loop.add_reader(self._read_fd, self._read)

    def close_write_end(self) -> None:
        """Let go of our copy of the writer's end, once the sandbox has its own."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def finish(self) -> bytes:
        """Take what is in the pipe and stop, whoever may still hold it."""
        self.close_write_end()
        if self._read_fd >= 0:
            self._read()
        self._stop()
        return bytes(self.kept)

    def _read(self) -> None:
        # Bounded: a child that was left behind may fill the pipe as fast as we empty it.
        for _ in range(64):
            try:
                data = os.read(self._read_fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._stop()
                return
            room = max(0, self._limit_bytes - len(self.kept))
            self.kept += data[:room]
            self.dropped_bytes += max(0, len(data) - room)

    def _stop(self) -> None:
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1


async def run(
    box: Box,
    argv: Sequence[str | bytes],
    *,
    cwd: str = "/",
    env: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    limit_bytes: int = 1024 * 1024,
    cpu_s: int = 0,
) -> Ran:
    """Run a command with an empty stdin; at the deadline its whole tree is killed and what it printed is given.

    Errors: as `Running.wait`.
    """
    out, err = Collector(limit_bytes), Collector(limit_bytes)
    try:
        running = box.start(argv, cwd=cwd, env=env, stdout=out.write_fd, stderr=err.write_fd, cpu_s=cpu_s)
        out.close_write_end()
        err.close_write_end()
        is_timed_out = False
        try:
            ended = await asyncio.wait_for(running.wait(), timeout_s)
        except TimeoutError:
            is_timed_out = True
            await running.kill()
            ended = await running.wait()
        return Ran(ended, out.finish(), err.finish(), is_timed_out)
    finally:
        out.finish()
        err.finish()
