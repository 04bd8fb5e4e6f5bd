"""What the gateway costs: requests per second and added latency against the same backend asked directly.

Run: `PYTHONPATH=controller python tests/bench/bench_gateway.py`. Backend, gateway and client are three
processes; direct and through the gateway take turns, so that a busy machine slows both. Not a test: asserts nothing.
"""

import asyncio
import importlib.util
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from retinue.channel.messages import Backend, Membership, Route
from retinue.gateway.link import GatewayLink

ROUNDS = 7
SEQUENTIAL = 400
CONCURRENT = 3000
CONNECTIONS = 32
STREAMS = 200
REQUEST = (
    b"POST %b/v1/ask HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: 80\r\n\r\n"
    + b"x" * 80
)

BACKEND = """
import asyncio, socket, sys
from aiohttp import web

async def handle(request):
    if request.raw_path.endswith("/stream"):
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: one\\n\\n")
        await asyncio.sleep(0.002)
        await answer.write(b"data: two\\n\\n")
        await answer.write_eof()
        return answer
    await request.read()
    return web.Response(body=b'{"verdict":"yes","score":1.0}', content_type="application/json")

async def main():
    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.SockSite(runner, socket.socket(fileno=int(sys.argv[1]))).start()
    await asyncio.Event().wait()

asyncio.run(main())
"""

GATEWAY = """
import sys
from retinue.gateway.main import run_gateway
sys.exit(run_gateway(int(sys.argv[1]), None, sys.argv[2], "bench"))
"""


class Line:
    """One keep-alive connection; the client does as little as it can."""

    def __init__(self, port: int, prefix: bytes) -> None:
        self.port = port
        self.request = REQUEST.replace(b"%b", prefix)
        self.stream = b"GET %b/stream HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".replace(b"%b", prefix)

    async def open(self) -> "Line":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def ask(self) -> None:
        self.writer.write(self.request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self.reader.readexactly(int(size.split(b":")[1]))

    async def read_first_event(self) -> float:
        start = time.perf_counter()
        self.writer.write(self.stream)
        await self.reader.readuntil(b"data: one\n\n")
        took_s = time.perf_counter() - start
        await self.reader.read()
        self.writer.close()
        return took_s


async def time_latency(port: int, prefix: bytes) -> float:
    line = await Line(port, prefix).open()
    times = []
    for _ in range(SEQUENTIAL):
        start = time.perf_counter()
        await line.ask()
        times.append(time.perf_counter() - start)
    line.writer.close()
    return statistics.median(times)


async def time_rate(port: int, prefix: bytes) -> float:
    lines = [await Line(port, prefix).open() for _ in range(CONNECTIONS)]

    async def work(line: Line) -> None:
        for _ in range(CONCURRENT // CONNECTIONS):
            await line.ask()

    start = time.perf_counter()
    await asyncio.gather(*(work(line) for line in lines))
    took_s = time.perf_counter() - start
    for line in lines:
        line.writer.close()
    return CONCURRENT // CONNECTIONS * CONNECTIONS / took_s


async def time_stream(port: int, prefix: bytes) -> float:
    times = [await (await Line(port, prefix).open()).read_first_event() for _ in range(STREAMS)]
    return statistics.median(times)


@asynccontextmanager
async def serve(directory: str) -> AsyncIterator[tuple[int, int]]:
    """Start backend and gateway; yields their ports."""
    control_path = str(Path(directory) / "gateway.sock")
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    backend, gateway = (one.getsockname()[1] for one in sockets)
    codes = ((BACKEND, []), (GATEWAY, [control_path]))
    children = [
        subprocess.Popen(  # noqa: ASYNC220 (before anything is timed)
            [sys.executable, "-c", code, str(one.fileno()), *words], pass_fds=[one.fileno()]
        )
        for one, (code, words) in zip(sockets, codes, strict=True)
    ]
    link = GatewayLink(control_path, "bench", lambda facts: None)
    replica = Backend(replica="judge/0", incarnation=1, node="bench", host="127.0.0.1", port=backend)
    link.publish(Membership(epoch=1, routes=(Route(service="judge", backends=(replica,)),)))
    task = asyncio.create_task(link.run())
    try:
        yield backend, gateway
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with serve(directory) as (backend, gateway):
            uvloop = "yes" if importlib.util.find_spec("uvloop") else "no"
            print(f"{os.cpu_count()} cores, uvloop in the gateway: {uvloop}; medians of {ROUNDS} rounds")
            for _ in range(2):
                await time_rate(gateway, b"/judge")
            for name, measure, scale, unit in (
                ("p50 latency, one caller", time_latency, 1000.0, "ms"),
                ("first event of a stream", time_stream, 1000.0, "ms"),
                (f"rate, {CONNECTIONS} callers", time_rate, 1.0, "req/s"),
            ):
                pairs = [(await measure(backend, b""), await measure(gateway, b"/judge")) for _ in range(ROUNDS)]
                direct, through = (statistics.median(values) * scale for values in zip(*pairs, strict=True))
                added = f", added {through - direct:.3f} {unit}" if unit == "ms" else ""
                print(f"{name}: direct {direct:,.3f}, gateway {through:,.3f} {unit}{added}, x{through / direct:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
