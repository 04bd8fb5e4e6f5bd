"""What the gateway costs, beside the same backend asked directly and through nginx and HAProxy where installed.

Run: `PYTHONPATH=controller python tests/bench/bench_gateway.py`. Backend, gateways, proxies and the callers are
processes of their own. All ways take turns, so that a busy machine slows all: read the ratios. CPU is the gateway's
own, per request: on two cores callers and backend take their share of what it could do. Asserts nothing.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway_load import QUESTION_BYTES, find_loop_factory, time_latency, time_rate, time_stream
from gateway_peers import Node, end, start_backend, start_others

from retinue.channel.certs import build_authority
from retinue.channel.messages import Backend, Membership, Route

ROUNDS = int(os.environ.get("ROUNDS", "7"))
SEQUENTIAL = 400
CONCURRENT = 6000
CONNECTIONS = 32
STREAMS = 50
HELD_PER_S = 200
HELD_S = 6.0
PREFIX = b"/judge"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Bench:
    """All that runs, and the ways to the backend: name -> (port, prefix)."""

    own: Node
    far: Node
    backend: subprocess.Popen[bytes]
    backend_port: int
    ways: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    epoch: int = 0
    incarnation: int = 1

    def publish(self, is_ready: bool) -> None:
        """Tell both gateways where the replica is, or that it is nowhere."""
        self.epoch += 1
        replica = Backend("judge/0", self.incarnation, "own", "127.0.0.1", self.backend_port)
        route = Route(service="judge", backends=(replica,) if is_ready else ())
        self.own.link.publish(Membership(self.epoch, (route,)))
        self.far.link.publish(Membership(self.epoch, (route,), (self.own.peer,)))


@asynccontextmanager
async def serve(home: Path) -> AsyncIterator[Bench]:
    """Start everything; end it when the context ends."""
    authority = build_authority("bench")
    backend, port = start_backend(0)
    bench = Bench(Node(home, authority, "own"), Node(home, authority, "far"), backend, port)
    others = start_others(home, port)
    bench.ways = {"direct": (port, b""), "gateway": (bench.own.port, PREFIX), "hop": (bench.far.port, PREFIX)}
    bench.ways |= {name: (port, PREFIX) for name, (_, port) in others.items()}
    bench.publish(is_ready=True)
    tasks = [asyncio.create_task(node.link.run()) for node in (bench.own, bench.far)]
    try:
        yield bench
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in (bench.backend, bench.own.process, bench.far.process):
            end(process)
        for process, _ in others.values():
            # Their workers end with them only when they are asked.
            end(process, signal.SIGTERM)


async def compare(
    bench: Bench, name: str, measure: Callable[[int, bytes], Awaitable[float]], scale: float, unit: str
) -> None:
    """Measure all ways in turn, and print medians and ratios."""
    rounds = [[await measure(*way) for way in bench.ways.values()] for _ in range(ROUNDS)]
    medians = [statistics.median(values) * scale for values in zip(*rounds, strict=True)]
    words = [f"{way} {value:,.3f} (x{value / medians[0]:.2f})" for way, value in zip(bench.ways, medians, strict=True)]
    print(f"{name}, {unit}: {', '.join(words)}", flush=True)


async def measure_cpu(bench: Bench) -> None:
    """Print the gateway's own CPU time per request: what one gateway could do with a core to itself."""
    spent = []
    for _ in range(ROUNDS):
        before = _read_cpu_s(bench.own.process.pid)
        await time_rate(*bench.ways["gateway"], CONNECTIONS, CONCURRENT)
        spent.append((_read_cpu_s(bench.own.process.pid) - before) / (CONCURRENT // CONNECTIONS * CONNECTIONS))
    cpu_s = statistics.median(spent)
    print(f"the gateway's CPU per request: {cpu_s * 1e6:.0f} us, or {1 / cpu_s:,.0f} req/s of one core", flush=True)


async def hold_through_restart(bench: Bench) -> None:
    """Call 200 times a second while the replica is killed and started again; print how many were lost."""
    asked: list[asyncio.Task[bool]] = []
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    restart = asyncio.create_task(_restart(bench))
    for number in range(int(HELD_PER_S * HELD_S)):
        await asyncio.sleep(start_s + number / HELD_PER_S - loop.time())
        asked.append(asyncio.create_task(_ask_once(bench.own.port)))
    await restart
    answered = sum(await asyncio.gather(*asked))
    print(
        f"a restart of 2 s under {HELD_PER_S} requests/s: {len(asked)} sent, {len(asked) - answered} lost", flush=True
    )


async def _restart(bench: Bench) -> None:
    await asyncio.sleep(HELD_S / 4)
    end(bench.backend)
    bench.own.link.drop("judge/0", bench.incarnation, "exited")
    bench.publish(is_ready=False)
    await asyncio.sleep(2.0)
    bench.incarnation += 1
    bench.backend, bench.backend_port = start_backend(0)
    bench.publish(is_ready=True)


async def _ask_once(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = b"POST /judge/v1/ask HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % QUESTION_BYTES + b"x" * QUESTION_BYTES)
        return (await reader.read()).startswith(b"HTTP/1.1 200")
    except ConnectionError:
        return False
    finally:
        writer.close()


def _read_cpu_s(pid: int) -> float:
    """Read the CPU time of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        async with serve(Path(home)) as bench:
            print(f"{os.cpu_count()} cores, uvloop: {find_loop_factory() is not None}; medians of {ROUNDS} rounds")
            for port, prefix in bench.ways.values():
                await time_rate(port, prefix, CONNECTIONS, CONCURRENT)
            await compare(bench, "p50, one caller", lambda *way: time_latency(*way, SEQUENTIAL), 1000.0, "ms")
            await compare(bench, "first event of a stream", lambda *way: time_stream(*way, STREAMS), 1000.0, "ms")
            name = f"rate, {CONNECTIONS} callers"
            await compare(bench, name, lambda *way: time_rate(*way, CONNECTIONS, CONCURRENT), 1.0, "req/s")
            await measure_cpu(bench)
            await hold_through_restart(bench)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=find_loop_factory()) as runner:
        runner.run(main())
