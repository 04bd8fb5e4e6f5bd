"""The pipes of a command: what it prints is read as it comes and kept at both ends; what it is told is written.

Memory is bounded by what is kept. A writer is never blocked by us, but one that floods is read slower and slower, so
that it costs its neighbours little.
"""

import asyncio
import base64
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable

from retinue.sandbox.exec_records import KeptBytes, Output

READ_BYTES = 64 * 1024
FLOOD_BYTES = 16 * 2**20
"""From here on a stream is a flood."""
FLOOD_STEP_BYTES = 2**20
FLOOD_PAUSE_S = 0.01
"""After each step of a flood: 100 MB/s at most."""
PIECE_BYTES = 4096
"""Smaller pieces of a tail are joined: one byte at a time costs no more memory than a block."""
_CHARACTER_BYTES = 4


class Kept:
    """The beginning and the end of a stream."""

    def __init__(self, limits: KeptBytes) -> None:
        self._limits = limits
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        """In pieces, so that the oldest are let go cheaply."""
        self._tail_bytes = 0
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take what was printed."""
        self.total_bytes += len(data)
        room = self._limits.head - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data or not self._limits.tail:
            return
        data = data[-self._limits.tail :]
        if self._tail and len(self._tail[-1]) + len(data) <= PIECE_BYTES:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._limits.tail:
            self._tail_bytes -= len(self._tail.popleft())

    def split(self) -> tuple[bytes, bytes]:
        """Give head and tail; all of it is in the head when nothing was dropped."""
        head, tail = bytes(self._head), b"".join(self._tail)
        tail = tail[-self._limits.tail :] if self._limits.tail else b""
        return (head + tail, b"") if len(head) + len(tail) == self.total_bytes else (head, tail)

    def read_from(self, offset: int) -> tuple[int, bytes]:
        """Give what is kept from an offset on: where it begins (later, when that part was dropped), and the bytes."""
        head, tail = self.split()
        if offset < len(head):
            return offset, head[offset:]
        begins = self.total_bytes - len(tail)
        at = min(max(offset, begins), self.total_bytes)
        return at, tail[at - begins :]

    def build_output(self) -> Output:
        """Build what a caller gets."""
        head, tail = self.split()
        text = _decode_both(head, tail)
        if text is not None:
            dropped = self.total_bytes - len(text[0].encode()) - len(text[1].encode())
            return Output("utf-8", text[0], text[1], dropped, self.total_bytes)
        dropped = self.total_bytes - len(head) - len(tail)
        coded = base64.b64encode(head).decode(), base64.b64encode(tail).decode()
        return Output("base64", coded[0], coded[1], dropped, self.total_bytes)


def _decode_both(head: bytes, tail: bytes) -> tuple[str, str] | None:
    """Decode both parts, without the halves of a character that the cut between them left; None: it is no text."""
    try:
        if not tail:
            return head.decode(), ""
        return head[: find_whole_end(head)].decode(), tail[_find_first_start(tail) :].decode()
    except UnicodeDecodeError:
        return None


def find_whole_end(head: bytes) -> int:
    """Say where the last whole character ends."""
    for back in range(1, min(_CHARACTER_BYTES, len(head)) + 1):
        byte = head[-back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(head) if length <= back else len(head) - back
    return len(head)


def _find_first_start(tail: bytes) -> int:
    """Say where the first character begins."""
    for at in range(min(_CHARACTER_BYTES, len(tail))):
        if tail[at] & 0xC0 != 0x80:
            return at
    return 0


class PipeReader:
    """Reads one pipe as it fills; ended by `finish` or `close`."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_data = on_data
        self._read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._read_fd, False)
        self._read_bytes = 0
        self._pauses: set[str] = set()
        """Who wants it not to be read now."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._read_fd, self._read)

    def close_write_end(self) -> None:
        """Let go of our copy of the writer's end, once the sandbox has its own."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def pause(self, who: str = "sink") -> None:
        """Read no more for now; a writer that goes on will block."""
        if self._read_fd >= 0 and not self._pauses:
            self._loop.remove_reader(self._read_fd)
        self._pauses.add(who)

    def resume(self, who: str = "sink") -> None:
        """Read again, unless somebody else wants it not to."""
        if who not in self._pauses:
            return
        self._pauses.discard(who)
        if self._read_fd >= 0 and not self._pauses:
            self._loop.add_reader(self._read_fd, self._read)

    def finish(self) -> None:
        """Take what is in the pipe now, and stop, whoever may still hold it."""
        if self._read_fd >= 0:
            (waiting,) = struct.unpack("i", fcntl.ioctl(self._read_fd, termios.FIONREAD, bytes(4)))
            while waiting > 0 and (data := self._take()):
                self._on_data(data)
                waiting -= len(data)
        self.close()

    def close(self) -> None:
        """Stop."""
        self.close_write_end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._read_fd >= 0:
            self._loop.remove_reader(self._read_fd)
            os.close(self._read_fd)
            self._read_fd = -1

    def _take(self) -> bytes:
        try:
            return os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return b""

    def _read(self) -> None:
        # One read for each turn of the loop: others are served in between.
        try:
            data = os.read(self._read_fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        steps = self._read_bytes // FLOOD_STEP_BYTES
        self._read_bytes += len(data)
        self._on_data(data)
        if self._read_bytes > FLOOD_BYTES and self._read_bytes // FLOOD_STEP_BYTES > steps:
            self._rest()

    def _rest(self) -> None:
        if self._read_fd >= 0 and self._timer is None:
            self.pause("flood")
            self._timer = self._loop.call_later(FLOOD_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self.resume("flood")


class PipeWriter:
    """Writes a command's stdin as fast as it is read, and never waits for it."""

    def __init__(self, data: bytes, stays_open: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._write_fd, False)
        self._left: deque[memoryview] = deque([memoryview(data)] if data else [])
        self._stays_open = stays_open
        self._is_waiting = False
        self.flush()

    @property
    def is_open(self) -> bool:
        return self._write_fd >= 0

    @property
    def left_bytes(self) -> int:
        """What was given and not yet taken."""
        return sum(len(part) for part in self._left)

    def add(self, data: bytes, is_last: bool) -> None:
        """Give more; is_last: and then the end."""
        if data:
            self._left.append(memoryview(data))
        self._stays_open = self._stays_open and not is_last
        self.flush()

    def close_read_end(self) -> None:
        """Let go of our copy of the reader's end, once the sandbox has its own."""
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1

    def flush(self) -> None:
        """Write what the pipe takes now."""
        while self._left and self._write_fd >= 0:
            try:
                count = os.write(self._write_fd, self._left[0])
            except BlockingIOError:
                if not self._is_waiting:
                    self._is_waiting = True
                    self._loop.add_writer(self._write_fd, self.flush)
                return
            except OSError:  # EPIPE: nobody reads it any more, which is the command's own affair.
                self.close()
                return
            rest = self._left.popleft()[count:]
            if rest:
                self._left.appendleft(rest)
        if self._is_waiting and self._write_fd >= 0:
            self._is_waiting = False
            self._loop.remove_writer(self._write_fd)
        if not self._stays_open:
            self._close_write_end()

    def close(self) -> None:
        """Stop, whatever is left."""
        self._left.clear()
        self.close_read_end()
        self._close_write_end()

    def _close_write_end(self) -> None:
        if self._write_fd >= 0:
            self._loop.remove_writer(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1
