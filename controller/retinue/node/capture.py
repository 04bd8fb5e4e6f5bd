"""One incarnation's output: read from its pipe, redacted, bounded, handed to the writer thread.

Never blocks on a disk, never lets a service block because a disk is full or hung,
and never keeps more than a few KiB in memory. A service that writes faster than
RATE_BYTES_S is slowed down by its own pipe.
"""

import asyncio
import os
from typing import Protocol

from retinue.node.redact import Redactor

RATE_BYTES_S = 16 * 1024 * 1024
BURST_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
CHUNKS_PER_TURN = 4
"""So that one loud service costs the loop a millisecond at a time."""
HEAD_BYTES = 16 * 1024 * 1024
"""Kept from the beginning of a launch: that is where the reason usually is."""
HALF_BYTES = 24 * 1024 * 1024
"""Size of each of the two files that hold the newest output after the head."""
LAST_BYTES = 2048
LAST_LINES = 20
DRAIN_BYTES = 4 * 1024 * 1024
"""At the end at most this much is still taken from the pipe (it holds 1 MiB)."""


class LogWriter(Protocol):
    """The writer thread, as far as logs need it."""

    def append(self, path: str, data: bytes) -> object: ...
    def replace(self, path: str, data: bytes, mode: int) -> object: ...


class LogFiles:
    """Where a launch's bytes go: the head, then two halves of the newest in turn."""

    def __init__(self, log_path: str, writer: LogWriter) -> None:
        self._head = log_path
        self._stem = log_path.removesuffix(".log")
        self._writer = writer
        self._head_left = HEAD_BYTES
        self._half = -1
        """Number of halves begun, less one."""
        self._sizes: list[int] = []

    @property
    def dropped_bytes(self) -> int:
        """Bytes of the launch that are in no file any more."""
        return sum(self._sizes[:-2])

    def write(self, data: bytes) -> None:
        """Append; rotate where needed. A launch without a path (never in a plan) is not written."""
        if not self._head:
            return
        if self._head_left > 0:
            part, data = data[: self._head_left], data[self._head_left :]
            self._head_left -= len(part)
            self._writer.append(self._head, part)
            if self._head_left == 0:
                note = f"\n[retinue: the newest output is in {os.path.basename(self._stem)}.tail.*.log]\n"
                self._writer.append(self._head, note.encode())
        while data:
            if self._half < 0 or self._sizes[-1] >= HALF_BYTES:
                self._begin_half()
            room = HALF_BYTES - self._sizes[-1]
            part, data = data[:room], data[room:]
            self._sizes[-1] += len(part)
            self._writer.append(self._path_of_half(), part)

    def _begin_half(self) -> None:
        self._half += 1
        self._sizes.append(0)
        if len(self._sizes) > 3:
            self._sizes[:2] = [sum(self._sizes[:2])]
        note = (
            f"[retinue: {self.dropped_bytes} bytes between the head and this were dropped]\n" if self._half > 1 else ""
        )
        self._writer.replace(self._path_of_half(), note.encode(), 0o600)

    def _path_of_half(self) -> str:
        return f"{self._stem}.tail.{self._half % 2}.log"


class Capture:
    """The read end of one log pipe, on the running loop."""

    def __init__(self, pipe: int, files: LogFiles, redactor: Redactor) -> None:
        self._pipe = pipe
        self._files = files
        self._redactor = redactor
        self._loop = asyncio.get_running_loop()
        self._last = b""
        self._tokens = float(BURST_BYTES)
        self._filled_s = self._loop.time()
        self._resume: asyncio.TimerHandle | None = None
        self._is_open = True
        os.set_blocking(pipe, False)
        self.bytes_read = 0

    def start(self) -> None:
        """Begin to read."""
        self._loop.add_reader(self._pipe, self._on_readable)

    def last_lines(self) -> str:
        """The last lines, redacted: 20 and 2 KiB at most."""
        text = self._last.decode(errors="replace")
        return "\n".join(text.splitlines()[-LAST_LINES:])[-LAST_BYTES:]

    def finish(self) -> None:
        """Take what is left in the pipe, without waiting, and close it."""
        if not self._is_open:
            return
        taken = 0
        while taken < DRAIN_BYTES and (count := self._take_chunk()) > 0:
            taken += count
        self._close()

    def _on_readable(self) -> None:
        self._fill()
        for _ in range(CHUNKS_PER_TURN):
            if self._tokens <= 0:
                self._pause()
                return
            count = self._take_chunk()
            if count == 0:
                self._close()
            if count <= 0:
                return
            self._tokens -= count

    def _take_chunk(self) -> int:
        """Read once; bytes taken, 0 at the end, -1 when there is nothing now."""
        try:
            chunk = os.read(self._pipe, CHUNK_BYTES)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        self.bytes_read += len(chunk)
        self._show(self._redactor.feed(chunk))
        return len(chunk)

    def _show(self, data: bytes) -> None:
        if not data:
            return
        self._last = (self._last + data)[-LAST_BYTES:]
        self._files.write(data)

    def _fill(self) -> None:
        now_s = self._loop.time()
        self._tokens = min(self._tokens + (now_s - self._filled_s) * RATE_BYTES_S, float(BURST_BYTES))
        self._filled_s = now_s

    def _pause(self) -> None:
        """Stop reading until there are tokens again; the pipe fills and the service waits in write(2)."""
        self._loop.remove_reader(self._pipe)
        self._resume = self._loop.call_later(CHUNKS_PER_TURN * CHUNK_BYTES / RATE_BYTES_S, self.start)

    def _close(self) -> None:
        self._is_open = False
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        self._show(self._redactor.finish())
