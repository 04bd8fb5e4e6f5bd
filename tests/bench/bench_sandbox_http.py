"""What a sandbox costs through the service: create, exec, destroy, rate, memory, over its unix socket.

Run: `PYTHONPATH=controller python tests/bench/bench_sandbox_http.py [SUSTAINED_S]`, as an ordinary user. One node, one
service process with its shards, complete isolation, an image made on the spot. Driven by this one process with an HTTP
client of a few lines, so that what is measured is the service. Not a test: asserts nothing but that answers are right.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from sandbox_calls import Caller, measure, read_cpu_ms, read_meminfo_kib, read_pss_kib, running_service, wait_ready
from sandbox_scenes import get_program, make_image

ROUNDS = 300
IN_FLIGHT = 16
BURST = 800
IDLE = 500
TRUE = {"argv": ["/bin/true"]}


class Bench:
    """A service and what is asked of it."""

    def __init__(self, sock: Path, image: Path) -> None:
        self.callers = [Caller(sock) for _ in range(IN_FLIGHT)]
        self._image = str(image)

    async def create(self, caller: Caller) -> str:
        made = await caller.ask("POST", "/v1/sandboxes", {"image": self._image})
        return str(made["id"])

    async def exec(self, caller: Caller, name: str) -> None:
        ended = await caller.ask("POST", f"/v1/sandboxes/{name}/exec", TRUE)
        assert ended["code"] == 0, ended

    async def destroy(self, caller: Caller, name: str) -> None:
        await caller.ask("DELETE", f"/v1/sandboxes/{name}")


def say(what: str, took_s: list[float], more: str = "") -> None:
    ordered = sorted(took_s)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(
        f"{what:36} p50 {p50 * 1e3:7.2f} ms   p99 {p99 * 1e3:7.2f} ms   max {ordered[-1] * 1e3:7.2f} ms   {more}",
        flush=True,
    )


async def one_after_another(bench: Bench) -> None:
    caller = bench.callers[0]
    steps = ("create", "first exec /bin/true", "second exec", "destroy", "GET /health, no work")
    took: dict[str, list[float]] = {step: [] for step in steps}
    for _ in range(ROUNDS):
        name = await measure(bench.create(caller), took["create"])
        await measure(bench.exec(caller, name), took["first exec /bin/true"])
        await measure(bench.exec(caller, name), took["second exec"])
        await measure(bench.destroy(caller, name), took["destroy"])
        await measure(caller.ask("GET", "/health"), took["GET /health, no work"])
    for step, seconds in took.items():
        say(step, seconds)


async def in_flight(
    bench: Bench, work: Callable[[Caller, Any], Awaitable[Any]], items: list[Any]
) -> tuple[list[Any], Any]:
    """Do something to every item, one at a time on each connection."""
    left, took, results = list(items), [], []

    async def go(caller: Caller) -> None:
        while left:
            results.append(await measure(work(caller, left.pop()), took))

    began = time.perf_counter()
    await asyncio.gather(*(go(caller) for caller in bench.callers))
    return results, (took, f"{len(took) / (time.perf_counter() - began):.0f}/s")


async def burst(bench: Bench, pid: int) -> None:
    """Each step for many at once; with the CPU time of our own processes, which a loaded machine does not change."""
    names: list[Any] = list(range(BURST))
    steps = ("create", lambda caller, _: bench.create(caller)), ("exec", bench.exec), ("destroy", bench.destroy)
    for step, work in steps:
        before = read_cpu_ms(pid)
        results, (took, rate) = await in_flight(bench, work, names)
        used = [(after - first) / BURST for after, first in zip(read_cpu_ms(pid), before, strict=True)]
        say(f"{step}, {IN_FLIGHT} in flight", took, f"{rate}   CPU ms each: front {used[0]:.2f}, shards {used[1]:.2f}")
        names = results if step == "create" else names


async def sustain(bench: Bench, seconds: float) -> None:
    """Create, use, destroy, and see whether the last tenth is slower than the first."""
    began, laps = time.perf_counter(), []

    async def go(caller: Caller) -> None:
        while time.perf_counter() - began < seconds:
            lap = time.perf_counter()
            name = await bench.create(caller)
            await bench.exec(caller, name)
            await bench.destroy(caller, name)
            laps.append((lap - began, time.perf_counter() - lap))

    await asyncio.gather(*(go(caller) for caller in bench.callers[:8]))
    first = [took for at, took in laps if at < seconds / 10]
    last = [took for at, took in laps if at > seconds * 0.9]
    say(f"create+exec+destroy, 8 in flight, {seconds:g} s", [took for _, took in laps], f"{len(laps) / seconds:.0f}/s")
    print(f"   first tenth p50 {statistics.median(first) * 1e3:.2f} ms, last {statistics.median(last) * 1e3:.2f} ms")


async def weigh(bench: Bench, pid: int) -> None:
    before, own = read_meminfo_kib("MemFree"), read_pss_kib(pid)
    names, _ = await in_flight(bench, lambda caller, _: bench.create(caller), list(range(IDLE)))
    after, own_after = read_meminfo_kib("MemFree"), read_pss_kib(pid)
    print(f"idle sandbox: {(before - after) / IDLE:.0f} KiB of the node's MemFree each,"
          f" of which the service's processes hold {(own_after - own) / IDLE:.1f} KiB")  # fmt: skip
    await in_flight(bench, bench.destroy, names)


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        place = Path(folder)
        image, sock = make_image(place / "image"), place / "sandbox.sock"
        argv = [
            "--budget-memory",
            "4TiB",
            "--budget-processes",
            "10000000",
            "--unix",
            str(sock),
            "--store",
            str(place / "store"),
            "--program",
            str(get_program(place)),
        ]
        (place / "store").mkdir()
        with running_service([*argv, *sys.argv[2:]]) as service:
            bench = Bench(sock, image)
            await wait_ready(bench.callers[0], service)
            began = time.perf_counter()
            await bench.destroy(bench.callers[0], await bench.create(bench.callers[0]))
            print(f"first create of an image (packed, mounted): {time.perf_counter() - began:.2f} s")
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
            await one_after_another(bench)
            await burst(bench, service.pid)
            await weigh(bench, service.pid)
            await sustain(bench, seconds)
            for caller in bench.callers:
                caller.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0))
