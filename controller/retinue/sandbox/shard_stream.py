"""A command whose output is passed on as it comes: lines of JSON, the last one says how it ended.

A caller that reads slowly is waited for: the command blocks on its pipe, and memory stays bounded.
"""

import asyncio
import base64
from collections import deque

from retinue.sandbox.exec_output import find_whole_end
from retinue.sandbox.exec_records import ExecResult
from retinue.sandbox.execs import Command
from retinue.sandbox.shard_link import Exchange
from retinue.sandbox.shard_wire import CHUNK_BYTES, WINDOW_BYTES, Answer, Body
from retinue.terms.record import Record, to_json


class StreamLine(Record, frozen=True):
    """One piece of output."""

    stream: str
    encoding: str
    data: str


class EndLine(Record, frozen=True):
    """The last line."""

    end: ExecResult


class Outlet:
    """What a command printed and its caller has not been sent yet."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._halves: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        """The beginning of a character whose end has not come yet."""
        self.changed = asyncio.Event()

    def put(self, stream: str, data: bytes) -> None:
        """Take output; a command that is too far ahead is read no more until its caller has caught up."""
        self._waiting.append((stream, data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes > WINDOW_BYTES:
            for reader in self._command.readers.values():
                reader.pause()
        self.changed.set()

    def take_line(self) -> bytes:
        """Build the next line; empty: nothing waits."""
        while self._waiting:
            stream, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            if self._waiting_bytes <= WINDOW_BYTES // 2:
                for reader in self._command.readers.values():
                    reader.resume()
            whole = self._halves[stream] + data
            end = find_whole_end(whole)
            self._halves[stream] = whole[end:]
            if end:
                return build_line(stream, whole[:end])
        return b""

    def take_halves(self) -> bytes:
        """Build the lines of what stayed incomplete."""
        lines = [build_line(stream, half) for stream, half in self._halves.items() if half]
        return b"".join(lines)


def build_line(stream: str, data: bytes) -> bytes:
    """Build one line."""
    try:
        line = StreamLine(stream, "utf-8", data.decode())
    except UnicodeDecodeError:
        line = StreamLine(stream, "base64", base64.b64encode(data).decode())
    return to_json(line) + b"\n"


async def stream_command(exchange: Exchange, command: Command) -> None:
    """Run a command and send its output down the exchange. Errors: ShardLost: nobody is there."""
    outlet = Outlet(command)
    command.sink = outlet.put
    running = asyncio.get_running_loop().create_task(command.run())
    running.add_done_callback(lambda task: outlet.changed.set())
    try:
        exchange.reply(Answer(200, kind=Body.NDJSON_STREAM))
        while True:
            while line := outlet.take_line():
                await _send(exchange, line)
            if running.done():
                break
            outlet.changed.clear()
            await outlet.changed.wait()
        await _send(exchange, outlet.take_halves() + to_json(EndLine(running.result())) + b"\n")
        exchange.end()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running])


async def _send(exchange: Exchange, data: bytes) -> None:
    for at in range(0, len(data), CHUNK_BYTES):
        await exchange.send(data[at : at + CHUNK_BYTES])
