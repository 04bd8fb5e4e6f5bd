"""How systems are loaded: one after the other, several in flight, and at a fixed rate whatever comes back."""

import asyncio
import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

from checks_math import GOLD, HANG, HANG_GOLD, TRIVIAL
from checks_systems import System

LIMIT_S = 10.0
HANG_LIMIT_S = 1.0
HANG_EVERY = 20
SEED = 7
WAIT_S = 5.0
"""After the last arrival: who has no answer by then is lost."""

Figures = dict[str, Any]


async def ask_trivial(system: System) -> float:
    """Ask the trivial check; returns seconds, and raises when it was not scored right."""
    reply = await system.ask(TRIVIAL, GOLD, LIMIT_S)
    if reply.score != 1.0:
        raise RuntimeError(f"the trivial check came to {reply}")
    return reply.took_s


async def measure_sequential(system: System, count: int) -> Figures:
    """One after the other."""
    began_s = time.perf_counter()
    took_s = [await ask_trivial(system) for _ in range(count)]
    rate = count / (time.perf_counter() - began_s)
    return {**describe(took_s), "per_s": rate, "raw_ms": [round(one * 1e3, 3) for one in took_s]}


async def measure_in_flight(system: System, count: int, callers: int) -> float:
    """Return checks per second with so many waiting at any time."""
    left = count

    async def call() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await ask_trivial(system)

    began_s = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return count / (time.perf_counter() - began_s)


@dataclass(frozen=True)
class Arrival:
    """One check of the open loop."""

    at_s: float
    is_hang: bool


def plan_arrivals(rate: float, seconds: float, has_hangs: bool) -> list[Arrival]:
    """Arrivals at a fixed rate; in each run of `HANG_EVERY` one is a hang, at a seeded place."""
    chance = random.Random(SEED)
    hanging: set[int] = set()
    count = int(rate * seconds)
    if has_hangs:
        hanging = {first + chance.randrange(HANG_EVERY) for first in range(0, count, HANG_EVERY)}
    return [Arrival(number / rate, number in hanging) for number in range(count)]


async def measure_open_loop(system: System, arrivals: list[Arrival]) -> Figures:
    """Ask at the planned moments; what the others meet is measured from the planned moment on."""
    loop = asyncio.get_running_loop()
    began_s = loop.time() + 0.1
    took_s: dict[int, float] = {}
    outcomes: dict[int, str] = {}

    async def ask(number: int, arrival: Arrival) -> None:
        await asyncio.sleep(began_s + arrival.at_s - loop.time())
        text, gold = (HANG, HANG_GOLD) if arrival.is_hang else (TRIVIAL, GOLD)
        reply = await system.ask(text, gold, HANG_LIMIT_S)
        took_s[number] = loop.time() - began_s - arrival.at_s
        outcomes[number] = "scored" if reply.score == 1.0 else f"{reply.outcome} {reply.score}"

    tasks = [asyncio.create_task(ask(number, arrival)) for number, arrival in enumerate(arrivals)]
    _, late = await asyncio.wait(tasks, timeout=arrivals[-1].at_s + WAIT_S)
    end_s = loop.time() - began_s
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    others = [number for number, arrival in enumerate(arrivals) if not arrival.is_hang]
    hangs = [number for number, arrival in enumerate(arrivals) if arrival.is_hang]
    waits_s = [took_s.get(number, end_s - arrivals[number].at_s) for number in others]
    return {
        **describe(waits_s),
        "others": len(others),
        "others_lost": sum(outcomes.get(number) != "scored" for number in others),
        "hangs": count_words([outcomes.get(number, "no answer") for number in hangs]),
        "raw_ms": [round(one * 1e3, 2) for one in waits_s],
    }


def describe(took_s: list[float]) -> Figures:
    """Median and upper end, in milliseconds."""
    ordered = sorted(took_s)
    last = len(ordered) - 1
    return {
        "p50_ms": statistics.median(ordered) * 1e3,
        "p95_ms": ordered[round(last * 0.95)] * 1e3,
        "p99_ms": ordered[round(last * 0.99)] * 1e3,
        "count": len(ordered),
    }


def count_words(words: list[str]) -> dict[str, int]:
    """Count equal words."""
    return {word: words.count(word) for word in sorted(set(words))}
