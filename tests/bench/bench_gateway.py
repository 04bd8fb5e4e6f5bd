"""What the gateway costs: requests per second and added latency against the same backend asked directly.

Run: `PYTHONPATH=controller python tests/bench/bench_gateway.py`. Backend, the gateways of two nodes and the client are
four processes. The backend is asked directly, through its own node's gateway, and through the other node's gateway,
which hops over TLS. The three take turns, so that a busy machine slows all. Not a test: asserts nothing.
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

from retinue.channel.certs import Authority, build_authority, build_certificate
from retinue.channel.join import Join, write_join
from retinue.channel.messages import Backend, Membership, Peer, Route
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


class Node:
    """One node's gateway process, and the agent's end of it."""

    def __init__(self, directory: Path, authority: Authority, name: str) -> None:
        self.name = name
        cert_pem, key_pem = build_certificate(authority, "agent", name)
        join = Join(
            authority.run_id,
            0,
            name,
            (),
            "",
            "",
            str(directory),
            "",
            "",
            "",
            authority.ca_pem,
            cert_pem,
            key_pem,
            "bench",
        )
        write_join(directory / f"{name}.pem", join)
        control_path = str(directory / f"{name}.sock")
        with socket.create_server(("127.0.0.1", 0)) as listen, socket.create_server(("127.0.0.1", 0)) as hop:
            self.port = listen.getsockname()[1]
            self.peer = Peer(name, ("127.0.0.1",), hop.getsockname()[1])
            fds = [listen.fileno(), hop.fileno()]
            words = ["--listen-fd", str(fds[0]), "--hop-fd", str(fds[1]), "--control-path", control_path]
            argv = [sys.executable, "-P", "-m", "retinue", "gateway", *words, "--join", str(directory / f"{name}.pem")]
            self.process = subprocess.Popen(argv, pass_fds=fds)
        self.link = GatewayLink(control_path, name, lambda facts: None)


@asynccontextmanager
async def serve(directory: Path) -> AsyncIterator[tuple[int, int, int]]:
    """Start the backend and both gateways; yields the ports of the backend, its own gateway and the other one."""
    with socket.create_server(("127.0.0.1", 0)) as listen:
        backend = listen.getsockname()[1]
        argv = [sys.executable, "-c", BACKEND, str(listen.fileno())]
        child = subprocess.Popen(argv, pass_fds=[listen.fileno()])  # noqa: ASYNC220 (before anything is timed)
    authority = build_authority("bench")
    far, own = nodes = [Node(directory, authority, name) for name in ("far", "own")]
    replica = Backend(replica="judge/0", incarnation=1, node="own", host="127.0.0.1", port=backend)
    for node, peers in ((own, ()), (far, (own.peer,))):
        node.link.publish(Membership(1, (Route(service="judge", backends=(replica,)),), peers))
    tasks = [asyncio.create_task(node.link.run()) for node in nodes]
    try:
        yield backend, own.port, far.port
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in (child, *(node.process for node in nodes)):
            os.kill(process.pid, signal.SIGKILL)
            process.wait()


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        async with serve(Path(directory)) as (backend, own, far):
            uvloop = "yes" if importlib.util.find_spec("uvloop") else "no"
            print(f"{os.cpu_count()} cores, uvloop in the gateway: {uvloop}; medians of {ROUNDS} rounds")
            for _ in range(2):
                await time_rate(far, b"/judge")
            for name, measure, scale, unit in (
                ("p50 latency, one caller", time_latency, 1000.0, "ms"),
                ("first event of a stream", time_stream, 1000.0, "ms"),
                (f"rate, {CONNECTIONS} callers", time_rate, 1.0, "req/s"),
            ):
                ways = ((backend, b""), (own, b"/judge"), (far, b"/judge"))
                rounds = [[await measure(*way) for way in ways] for _ in range(ROUNDS)]
                direct, through, hop = (statistics.median(values) * scale for values in zip(*rounds, strict=True))
                shares = f"x{through / direct:.2f} and x{hop / direct:.2f} of direct, x{hop / through:.2f} by the hop"
                print(f"{name}: direct {direct:,.3f}, gateway {through:,.3f}, hop {hop:,.3f} {unit}; {shares}")


if __name__ == "__main__":
    asyncio.run(main())
