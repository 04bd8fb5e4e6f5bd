"""What the core costs at scale: a real controller process, and N scripted agents with 10 replicas each over real TLS.

Run: `PYTHONPATH=controller python tests/bench/bench_core.py [N ...]`. Prints time to join and to be ready, round
trips of a decision while all beat, memory, idle cost, teardown, and the ratio of the largest N to the smallest:
what grows linearly grows as N does. Not a test: asserts nothing.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from core_stub import Rig, build_bench_plan, open_rig

from retinue.supervise.happenings import AgentSaid, Happening, NodeGone, TrainerExited
from retinue.supervise.state import RunPhase
from support.world import Script, World

SIZES = (250, 500, 1000)
IDLE_S = 15.0
SETTLE_S = 3.0
"""Between two measurements: gateways are still told of what the one before changed."""
CRASHES = 400
CRASH_PERIOD_S = 0.02
WITHDRAWALS = 40
WITHDRAWAL_PERIOD_S = 0.1
AIMS = {"decision p99, ms": 50.0, "memory, MB": 300.0, "idle, % of a core": 10.0}

Row = dict[str, float]


async def measure_real(count: int) -> Row:
    """Run one whole life of a run with `count` nodes."""
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as directory:
        async with open_rig(Path(directory) / "run", build_bench_plan(count)) as rig:
            row = {"start to launch, s": await rig.start()}
            row |= await measure_stage(rig, "dial to all joined", rig.hear_agents("joined"))
            row |= await measure_stage(rig, "joined to all ready", rig.hear("trainer"))
            rig.say(ev="trainer_started", pid=4343)
            row |= await measure_decisions(rig)
            row |= await measure_idle(rig)
            row["memory, MB"] = rig.read_memory_mb()
            row["memory at its peak, MB"] = rig.read_memory_mb("VmHWM")
            row |= await measure_stage(rig, "teardown", rig.stop())
    return row


async def measure_stage(rig: Rig, name: str, end: Awaitable[Any]) -> Row:
    """Time a stage by the clock and by the controller's CPU: the clock also shows the agents' and others' work."""
    began_s, cpu_s = time.perf_counter(), rig.read_cpu_s()
    await end
    return {f"{name}, s": time.perf_counter() - began_s, f"{name}, CPU s": rig.read_cpu_s() - cpu_s}


async def measure_decisions(rig: Rig) -> Row:
    """Let replicas crash and become unready, once what follows the start is over."""
    await asyncio.sleep(SETTLE_S)
    before = await rig.ask_agents("counts", "counts")
    began_s = time.perf_counter()
    crashed = await rig.ask_agents(f"crash {CRASHES} {CRASH_PERIOD_S}", "crashed")
    after = await rig.ask_agents("counts", "counts")
    took_s = time.perf_counter() - began_s
    withdrawn = await rig.ask_agents(f"withdraw {WITHDRAWALS} {WITHDRAWAL_PERIOD_S}", "withdrawn")
    return {
        "decision p50, ms": crashed["p50"] * 1e3,
        "decision p99, ms": crashed["p99"] * 1e3,
        "decision worst, ms": crashed["worst"] * 1e3,
        "the agents' own lag p99, ms": crashed["late"] * 1e3,
        "sent meanwhile, kB/s": (after["received"] - before["received"]) / took_s / 1e3,
        "memberships meanwhile, 1/s": (after["memberships"] - before["memberships"]) / took_s,
        "unready to own gateway p50, ms": withdrawn["p50"] * 1e3,
        "unready to own gateway p99, ms": withdrawn["p99"] * 1e3,
    }


async def measure_idle(rig: Rig) -> Row:
    """Nothing but beats."""
    await asyncio.sleep(SETTLE_S)
    before = await rig.ask_agents("counts", "counts")
    cpu_s, written = rig.read_cpu_s(), rig.read_written_bytes()
    began_s = time.perf_counter()
    await asyncio.sleep(IDLE_S)
    took_s = time.perf_counter() - began_s
    cpu_s, written = rig.read_cpu_s() - cpu_s, rig.read_written_bytes() - written
    after = await rig.ask_agents("counts", "counts")
    return {
        "idle, % of a core": cpu_s / took_s * 100,
        "idle sent, kB/s": (after["received"] - before["received"]) / took_s / 1e3,
        "idle written to files, kB/s": written / took_s / 1e3,
    }


class TimedWorld(World):
    """The simulated world of the tests with a clock at the run's one door, and without its O(replicas) checks."""

    def __init__(self, *arguments: Any, **fields: Any) -> None:
        super().__init__(*arguments, **fields)
        self.times: dict[str, list[float]] = defaultdict(list)

    def handle(self, happening: Happening) -> None:
        if self.exit_code is not None:
            return
        said = happening.message if isinstance(happening, AgentSaid) else happening
        stage = "teardown" if self.run.state.ending is not None else ""
        began_s = time.thread_time()
        self.run.handle(happening)
        self.times[stage or type(said).__name__].append(time.thread_time() - began_s)


def measure_inside(count: int) -> Row:
    """Time `Run.handle` per event over a scripted run: all start, a fifth crashes, one node is lost, all stop.

    Units: CPU time, so that a busy machine does not show.
    """
    scripts = {"own-0": [Script(exits_s=30.0), Script()], "shared-0": [Script(exits_s=35.0), Script()]}
    world = TimedWorld(build_bench_plan(count, backoff_s=1.0), scripts, trainer_s=None)
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    world.run_for(60.0)
    lost = world.run.nodes.live()[-1]
    world.nodes[lost].alive.clear()
    world.nodes[lost].is_connected = False
    world.handle(NodeGone(lost, "silent"))
    world.run_for(5.0)
    world.handle(TrainerExited(0, None))
    world.run_to_end()
    every = [took_s for times in world.times.values() for took_s in times]
    row = {
        "events": float(len(every)),
        "all events, s": sum(every),
        "event p50, us": statistics.median(every) * 1e6,
        "event p99, us": statistics.quantiles(every, n=100)[98] * 1e6,
        "event worst, ms": max(every) * 1e3,
    }
    for name in ("AgentJoined", "Report", "ReplicaTimer", "RunTimer", "teardown"):
        row[f"{name} mean, us"] = statistics.fmean(world.times[name]) * 1e6
    return row | {"NodeGone, ms": max(world.times["NodeGone"]) * 1e3}


def print_table(title: str, sizes: list[int], rows: list[Row]) -> None:
    print(f"\n{title:<34}" + "".join(f"{f'N={size}':>11}" for size in sizes) + f"{'ratio':>8}")
    for name in rows[0]:
        values = [row[name] for row in rows]
        ratio = f"{values[-1] / values[0]:8.1f}" if values[0] else "       -"
        aim = f"  aim < {AIMS[name]:g}" if name in AIMS else ""
        print(f"{name:<34}" + "".join(f"{value:11,.2f}" for value in values) + ratio + aim)


def main(sizes: list[int]) -> None:
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; 10 replicas a node; ratio N={sizes[-1]} / N={sizes[0]}"
    )
    print_table("real controller, TLS, one machine", sizes, [asyncio.run(measure_real(size)) for size in sizes])
    print_table("Run.handle in a simulated world", sizes, [measure_inside(size) for size in sizes])


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or list(SIZES))
