"""What the gateway's bench calls and calls with: a backend and callers that do as little as they can.

As a program: `gateway_load.py FD` serves the listening socket FD.
"""

import asyncio
import importlib
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import cast

BODY = b'{"verdict":"yes","score":1.0}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = b"data: one\n\n"
QUESTION_BYTES = 80
STREAM_GAP_S = 0.002


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where there is one, so that callers and backend weigh little."""
    try:
        return importlib.import_module("uvloop").new_event_loop  # type: ignore[no-any-return]
    except ImportError:
        return None


class Backend(asyncio.Protocol):
    """Answers each question of 80 bytes at once, and a GET with a stream of two events."""

    def __init__(self) -> None:
        self.unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.unread += data
        while (end := self.unread.find(b"\r\n\r\n")) >= 0:
            if self.unread.startswith(b"GET"):
                self.unread = self.unread[end + 4 :]
                self.transport.write(STREAM + _frame(FIRST))
                asyncio.get_running_loop().call_later(STREAM_GAP_S, self._end_stream)
            elif len(self.unread) >= end + 4 + QUESTION_BYTES:
                self.unread = self.unread[end + 4 + QUESTION_BYTES :]
                self.transport.write(ANSWER)
            else:
                return

    def _end_stream(self) -> None:
        self.transport.write(_frame(b"data: two\n\n") + b"0\r\n\r\n")


class Caller(asyncio.Protocol):
    """One keep-alive connection that asks the same again and again."""

    def __init__(self, prefix: bytes, count: int) -> None:
        self.question = b"POST %b/v1/ask HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%b" % (
            prefix,
            QUESTION_BYTES,
            b"x" * QUESTION_BYTES,
        )
        self.left = count
        self.times_s: list[float] = []
        self.unread = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._ask()

    def data_received(self, data: bytes) -> None:
        self.unread += data
        if not self.unread.endswith(BODY):
            return
        self.times_s.append(time.perf_counter() - self.asked_s)
        if not self.unread.startswith(b"HTTP/1.1 200"):
            self.transport.abort()
            return
        self.unread = b""
        self.left -= 1
        if self.left:
            self._ask()
        else:
            self.done.set_result(None)
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"ended with {self.left} requests to go: {self.unread[:200]!r}"))

    def _ask(self) -> None:
        self.asked_s = time.perf_counter()
        self.transport.write(self.question)


async def time_latency(port: int, prefix: bytes, count: int) -> float:
    """Return the median of one caller's requests, in seconds."""
    return statistics.median((await _call(port, prefix, 1, count))[0].times_s)


async def time_rate(port: int, prefix: bytes, callers: int, count: int) -> float:
    """Return the requests per second of so many callers."""
    start_s = time.perf_counter()
    await _call(port, prefix, callers, count // callers)
    return count // callers * callers / (time.perf_counter() - start_s)


async def time_stream(port: int, prefix: bytes, count: int) -> float:
    """Return the median time to a stream's first event on a connection that stands, in seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times_s = []
    for _ in range(count):
        start_s = time.perf_counter()
        writer.write(b"GET %b/stream HTTP/1.1\r\nHost: bench\r\n\r\n" % prefix)
        await reader.readuntil(FIRST)
        times_s.append(time.perf_counter() - start_s)
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()
    return statistics.median(times_s)


async def _call(port: int, prefix: bytes, callers: int, each: int) -> list[Caller]:
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(lambda: Caller(prefix, each), "127.0.0.1", port))[1] for _ in range(callers)]
    await asyncio.gather(*(caller.done for caller in made))
    return made


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(fd: int) -> None:
    server = await asyncio.get_running_loop().create_server(Backend, sock=socket.socket(fileno=fd), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        runner.run(_serve(int(sys.argv[1])))
