"""What a check costs in a single-use process behind a service, beside what people use instead; about five minutes.

Run: `PYTHONPATH=controller python tests/bench/bench_checks.py [DIRECTORY]`. Every system does the same
trivial check of the math verifier; rounds of the bare fork-ahead loop and of ours take turns, so that a busy machine
slows both: trust ratios before milliseconds, and CPU time before both. A Python below /tmp pays for being bound back
into every child's /tmp. Keeps all it measured as JSON in DIRECTORY (bench-results/). Not a test: asserts nothing.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

from checks_load import (
    Figures,
    ask_trivial,
    measure_in_flight,
    measure_open_loop,
    measure_sequential,
    plan_arrivals,
)
from checks_slots import measure_slots
from checks_systems import Ours, Peer, System, open_ours, open_peer, read_cpu_s, read_memory_mb

WORKERS = 2
OPEN_WORKERS = 2
"""The default here, and the hardest: a hang gives its slot up after 200 ms, in ours only."""
ROUNDS, ROUND = 7, 40
SEQUENTIAL = {"inside": 200, "alarm": 200, "fresh": 2, "forkserver": 12, "pool": 200, "persistent": 200}
IN_FLIGHT = (2, 8)
IN_FLIGHT_COUNT = 100
MEMORY_CHECKS = 5000
RATE_ROUNDS = 3
WARM_UP = 30
RATE, SECONDS, CALM_SECONDS = 20.0, 20.0, 10.0
RESULTS = Path(__file__).parents[2] / "bench-results"
WORDS = {
    "inside": "verifier alone, in process, no limit",
    "alarm": "in process, signal.alarm (library timers)",
    "fresh": "fresh interpreter",
    "forkserver": "multiprocessing forkserver, preload",
    "pool": "ProcessPoolExecutor + result(timeout), not isolated",
    "persistent": "persistent worker on a pipe, not isolated",
    "bare": "bare fork-ahead loop (base)",
    "ours": "ours: client, unix socket, namespaces",
    "tcp": "ours: client, TCP",
}


async def measure_peers() -> Figures:
    """Each peer alone, one check after the other."""
    found: Figures = {}
    for name, count in SEQUENTIAL.items():
        async with open_peer("checks_peers.py", name, WORKERS) as peer:
            await ask_trivial(peer)
            found[name] = await measure_sequential(peer, count)
            print_row(name, found[name])
    return found


async def measure_ours() -> Figures:
    """Ours and the bare loop, in turns; then throughput, then memory over many checks."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="retinue-bench-")))
        bare: Peer = await stack.enter_async_context(open_peer("checks_bare.py", "bare", WORKERS + 2))
        unix, tcp = await stack.enter_async_context(open_ours(directory, WORKERS))
        print(f"rung: {unix.rung}")
        systems: dict[str, System] = {"bare": bare, "ours": unix, "tcp": tcp}
        for system in systems.values():
            for _ in range(WARM_UP):
                await ask_trivial(system)
        found: Figures = {"rung": unix.rung}
        found |= await measure_in_turns(systems)
        for callers in IN_FLIGHT:
            found[f"in_flight_{callers}"] = await measure_rates(systems, callers)
        found["memory"] = await measure_memory(unix)
    return found


async def measure_in_turns(systems: dict[str, System]) -> Figures:
    """Sequential checks, a round of each system after the other; medians of the rounds."""
    rounds: dict[str, list[Figures]] = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, system in systems.items():
            rounds[name].append(await measure_sequential(system, ROUND))
    found: Figures = {}
    for name, figures in rounds.items():
        keys = ("p50_ms", "p95_ms", "p99_ms", "per_s")
        found[name] = {key: statistics.median(one[key] for one in figures) for key in keys}
        found[name]["raw_ms"] = [one["raw_ms"] for one in figures]
        ratios = [one["p50_ms"] / base["p50_ms"] for one, base in zip(figures, rounds["bare"], strict=True)]
        found[name]["ratio_to_bare"] = statistics.median(ratios)
        print_row(name, found[name], f"{found[name]['ratio_to_bare']:.2f}x bare (median of {ROUNDS} rounds)")
    return found


async def measure_rates(systems: dict[str, System], callers: int) -> Figures:
    """Checks per second and CPU time of a check, with some in flight; the systems take turns, three each."""
    rates: dict[str, list[float]] = {name: [] for name in systems}
    cpu_s = dict.fromkeys(systems, 0.0)
    for _ in range(RATE_ROUNDS):
        for name, system in systems.items():
            before_s = read_cpu_of(name, system)
            rates[name].append(await measure_in_flight(system, IN_FLIGHT_COUNT, callers))
            cpu_s[name] += read_cpu_of(name, system) - before_s
    found: Figures = {}
    for name in systems:
        per_s, cpu_ms = statistics.median(rates[name]), cpu_s[name] / RATE_ROUNDS / IN_FLIGHT_COUNT * 1e3
        found[name] = {"per_s": per_s, "rounds_per_s": rates[name], "cpu_ms": cpu_ms}
        slower, dearer = found["bare"]["per_s"] / per_s, cpu_ms / found["bare"]["cpu_ms"]
        print(
            f"{WORDS[name]:52} {callers} in flight {per_s:5.0f}/s ({slower:.2f}x bare)   "
            f"CPU {cpu_ms:5.2f} ms a check ({dearer:.2f}x bare)"
        )
    return found


def read_cpu_of(name: str, system: System) -> float:
    """CPU time of a system by now, in seconds; of ours with the client's, which is this process."""
    return read_cpu_s(system.pid) + (0.0 if name == "bare" else time.process_time())


async def measure_memory(ours: Ours) -> Figures:
    """Memory of the service's whole tree before and after many checks."""
    before = read_memory_mb(ours.pid)
    rate = await measure_in_flight(ours, MEMORY_CHECKS, 8)
    after = read_memory_mb(ours.pid)
    print(f"memory, MB, before: {before}; after {MEMORY_CHECKS} checks ({rate:.0f}/s): {after}")
    return {"before": before, "after": after, "checks": MEMORY_CHECKS, "per_s": rate}


async def measure_hangs() -> Figures:
    """The open loop, without and with hangs, for each system that is meant to bear them."""
    print(f"\nopen loop: {RATE:g} checks/s, 1 in 20 hangs, limit 1 s, {OPEN_WORKERS} workers; the others wait:")
    found: Figures = {}
    for name in ("alarm", "pool", "persistent"):
        async with open_peer("checks_peers.py", name, OPEN_WORKERS) as peer:
            found[name] = await measure_both(name, peer)
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as directory:
        async with open_ours(Path(directory), OPEN_WORKERS) as (unix, _):
            found["ours"] = await measure_both("ours", unix)
    return found


async def measure_both(name: str, system: System) -> Figures:
    """Without hangs first: some systems do not come back from them."""
    for _ in range(WARM_UP):
        await ask_trivial(system)
    calm = await measure_open_loop(system, plan_arrivals(RATE, CALM_SECONDS, has_hangs=False))
    hung = await measure_open_loop(system, plan_arrivals(RATE, SECONDS, has_hangs=True))
    print(
        f"{WORDS[name]:52} p50 {calm['p50_ms']:7.1f} -> {hung['p50_ms']:8.1f} ms   p99 {calm['p99_ms']:7.1f} -> "
        f"{hung['p99_ms']:8.1f} ms ({hung['p99_ms'] / calm['p99_ms']:.1f}x)   others lost "
        f"{hung['others_lost']}/{hung['others']}   hangs {hung['hangs']}"
    )
    return {"without": calm, "with": hung}


def print_row(name: str, figures: Figures, note: str = "") -> None:
    print(
        f"{WORDS[name]:52} p50 {figures['p50_ms']:8.2f} ms  p95 {figures['p95_ms']:8.2f} ms  "
        f"{figures['per_s']:7.0f}/s  {note}"
    )


async def main() -> None:
    """Measure everything, print the tables, keep the raw file."""
    began_s = time.monotonic()
    found: Figures = {"load_before": os.getloadavg(), "cpus": os.cpu_count(), "python": sys.version}
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs; one check after the other:")
    found["sequential"] = await measure_peers()
    found["ours"] = await measure_ours()
    found["open_loop"] = await measure_hangs()
    found["slots"] = await measure_slots()
    found["load_after"] = os.getloadavg()
    found["took_s"] = round(time.monotonic() - began_s, 1)
    results = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    results.mkdir(exist_ok=True)
    path = results / f"checks-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(found, indent=1))
    print(f"load {os.getloadavg()[0]:.1f}; {found['took_s']:.0f} s; raw: {path}")


if __name__ == "__main__":
    asyncio.run(main())
