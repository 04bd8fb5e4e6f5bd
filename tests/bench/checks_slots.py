"""How soon a killed check's slot works again: from its deadline, and from the kill, to the next check's beginning.

One worker, a line of checks that all hang, and none steps aside after 200 ms: so each waits for the slot of the one
before. The host runs in this process; its warm parent and children are the real ones.
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from checks_load import Figures, describe

from retinue.checks import slots, watch
from retinue.checks.host import Host, open_host
from retinue.checks.judgement import Closing
from retinue.checks.pressure import find_deadline
from retinue.checks.records import CheckRequest, Limits, WarmConfig
from retinue.checks.settings import Settings
from retinue.checks.spare import Child
from retinue.terms.outcome import OutcomeKind

LIMIT_S = 0.15
CHECKS = 100
BURNERS = 4
WARM_S = 120.0
PLUGIN = '''"""Hangs as it is told."""
import time

def check(response, gold, args):
    kept = bytearray(args["mib"] * 2**20)
    if response == "spin":
        while True:
            pass
    if response == "sleep":
        time.sleep(600)
    return float(len(kept))
'''
KINDS = {"sleeps": ("sleep", 0), "spins": ("spin", 0), "spins, 256 MiB": ("spin", 256)}


class Moments:
    """When each kill was due and sent, and when the next check of the line began."""

    def __init__(self) -> None:
        self.due_s = self.killed_s = 0.0
        self.from_due_s: list[float] = []
        self.from_kill_s: list[float] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Listen at the three places; the host itself is not changed."""
        kill, prepare = Child.kill, Child.prepare

        def note_due(began_s: float, limit_s: float, short_s: float) -> float:
            self.due_s = find_deadline(began_s, limit_s, short_s)
            return self.due_s

        def note_kill(child: Child, closing: Closing, detail: str = "") -> None:
            if closing is Closing.WALL:
                self.killed_s = time.monotonic()
            kill(child, closing, detail)

        async def note_begin(child: Child, request: CheckRequest, limits: Limits) -> object:
            if self.killed_s:
                now_s = time.monotonic()
                self.from_kill_s.append(now_s - self.killed_s)
                self.from_due_s.append(now_s - self.due_s)
                self.killed_s = 0.0
            return await prepare(child, request, limits)

        with (
            patch.object(watch, "find_deadline", note_due),
            patch.object(slots, "ASIDE_PER_WORKER", 0),
            patch.object(Child, "kill", note_kill),
            patch.object(Child, "prepare", note_begin),
        ):
            yield


async def measure_slots() -> Figures:
    """Measure on a calm node, then beside programs that burn all its CPUs."""
    found: Figures = {}
    print(f"\nthe slot of a killed check: 1 worker, {CHECKS} hanging checks in a line, limit {LIMIT_S * 1e3:.0f} ms:")
    for name, burners in (("calm", 0), ("loaded", BURNERS)):
        with _burn(burners):
            for kind, (response, mib) in KINDS.items():
                found[f"{name}, {kind}"] = await _measure_line(f"{name}, {kind}", response, mib)
    return found


async def _measure_line(title: str, response: str, mib: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as directory:
        Path(directory, "hanging.py").write_text(PLUGIN)
        limits = Limits(wall_s=LIMIT_S, cpu_s=10.0)
        config = WarmConfig(verifiers={"hanging": "hanging:check"}, path=[directory], limits=limits)
        async with open_host(Settings(config=config, workers=1)) as host:
            await _wait_until_warm(host)
            ready = CheckRequest(verifier="hanging", response="", args={"mib": 0})
            await host.submit([ready], "bench", 1)[0].outcome
            moments = Moments()
            request = CheckRequest(verifier="hanging", response=response, args={"mib": mib})
            with moments.noted():
                checks = host.submit([request] * CHECKS, "bench", CHECKS)
                outcomes = [(await check.outcome).outcome for check in checks]
    if set(outcomes) != {OutcomeKind.TIMED_OUT}:
        raise RuntimeError(f"not all of the line timed out: {set(outcomes)}")
    due, kill = describe(moments.from_due_s), describe(moments.from_kill_s)
    print(
        f"{title:26} from the deadline p50 {due['p50_ms']:6.2f} ms  p99 {due['p99_ms']:6.2f} ms   "
        f"from the kill p50 {kill['p50_ms']:6.2f} ms  p99 {kill['p99_ms']:6.2f} ms  ({due['count']} slots)"
    )
    raw = [round(one * 1e3, 3) for one in moments.from_due_s]
    return {"from_deadline": due, "from_kill": kill, "raw_from_deadline_ms": raw}


async def _wait_until_warm(host: Host) -> None:
    async with asyncio.timeout(WARM_S):
        while not host.nursery.is_ready:  # noqa: ASYNC110 - the host tells nobody when it is warm
            await asyncio.sleep(0.02)


@contextmanager
def _burn(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    processes = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    asyncio.run(measure_slots())
