"""A trainer of the quickstart: scores answers as a rollout would, while parts of its run are killed.

1. Plain requests to three services through RETINUE_<SERVICE>_URL, without a pause (callers.py).
2. 348 math answers, right and wrong, and 24 that hang or crash a checker, through `retinue.client`.
3. Six SIGKILLs on the way (nightmares.py): a replica, the agent, the checks' warm parent, the controller, ...
4. 32 coding answers in sandboxes, a third of which flood, fork, hang or try to get out (coding.py).

At the end: no request lost, no answer without an outcome, no outage in the place of a score, no sandbox left.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from callers import Callers
from coding import play_coding
from nightmares import PARTS, kill

from retinue.client import SCORELESS, Check, Outcome, Retinue

DATA = Path(__file__).parent / "data"
SECONDS = float(os.environ.get("QUICKSTART_SECONDS", "20"))
"""How long the plain requests go on at least; the kills are spread over it."""
HANG_LIMIT_S = 1.0
"""What a hanging answer may cost its own rollout."""
BAR = 32


def read_answers() -> list[dict[str, Any]]:
    """Read both files; the answers that hang are spread among the others, as in a real batch."""
    math = [json.loads(line) | {"verifier": "math"} for line in (DATA / "math_answers.jsonl").open()]
    hanging = [json.loads(line) | {"hangs": True} for line in (DATA / "hanging_answers.jsonl").open()]
    step = len(math) // len(hanging)
    for number, row in enumerate(hanging):
        math.insert(number * (step + 1), row)
    return math


def build_check(row: dict[str, Any]) -> Check:
    return Check(
        verifier=row["verifier"],
        response=row["response"],
        gold=row["gold"],
        args=row["args"],
        timeout_s=HANG_LIMIT_S if row.get("hangs") else None,
        rollout_id=row["name"],
    )


class Progress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.said_s = total, 0, 0.0

    def step(self) -> None:
        self.done += 1
        now_s = time.monotonic()
        if now_s - self.said_s < (0.1 if sys.stdout.isatty() else 5.0) and self.done < self.total:
            return
        self.said_s = now_s
        filled = BAR * self.done // self.total
        text = f"  [{'#' * filled}{'.' * (BAR - filled)}] {self.done}/{self.total} answers"
        print(f"\r{text}" if sys.stdout.isatty() and self.done < self.total else text, end="", flush=True)
        if not sys.stdout.isatty() or self.done == self.total:
            print(flush=True)

    def say(self, text: str) -> None:
        """Print a line of its own, above the bar."""
        print(f"\r{text:<{BAR + 30}}" if sys.stdout.isatty() else text, flush=True)


async def score(rows: list[dict[str, Any]], progress: Progress) -> list[Outcome | None]:
    outcomes: list[Outcome | None] = [None] * len(rows)
    async with Retinue.from_env() as retinue:
        async for index, outcome in retinue.check_many([build_check(row) for row in rows]):
            outcomes[index] = outcome
            progress.step()
    return outcomes


async def play_nightmares(progress: Progress) -> None:
    pause_s = SECONDS / (len(PARTS) + 1)
    for part in PARTS:
        await asyncio.sleep(pause_s)
        progress.say("  " + await asyncio.to_thread(kill, part))
    await asyncio.sleep(pause_s)


def find_mistakes(rows: list[dict[str, Any]], outcomes: list[Outcome | None]) -> list[str]:
    """Name every row that is not as it must be: lost, an outage, a number where none may be, a wrong score."""
    mistakes = []
    for row, outcome in zip(rows, outcomes, strict=True):
        if outcome is None:
            mistakes.append(f"{row['name']}: lost")
        elif outcome.outcome in SCORELESS:
            mistakes.append(f"{row['name']}: {outcome.outcome.value}, score {outcome.score}: {outcome.reason}")
        elif outcome.score != row["score"]:
            mistakes.append(f"{row['name']}: scored {outcome.score}, should be {row['score']}: {outcome.reason}")
    return mistakes


def print_table(rows: list[dict[str, Any]], outcomes: list[Outcome | None]) -> None:
    kinds = Counter(outcome.outcome.value if outcome else "lost" for outcome in outcomes)
    right = sum(outcome is not None and outcome.score == 1.0 for outcome in outcomes)
    print(
        f"checks: {len(rows)} answers, {right} right; " + ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    )
    stuck = [
        (row["name"], outcome)
        for row, outcome in zip(rows, outcomes, strict=True)
        if outcome is not None and outcome.outcome.value in ("timed_out", "killed")
    ]
    for name, outcome in stuck:
        print(f"  {name:<34} {outcome.outcome.value:<9} score {outcome.score:g}  {outcome.wall_s:5.2f} s")


async def main() -> int:
    rows = read_answers()
    callers = Callers([os.environ[f"RETINUE_{name}_URL"] for name in ("SCORER", "CORPUS", "CUSTOMER")])
    print(f"trainer: {len(rows)} answers to score, requests to 3 services meanwhile, {len(PARTS)} kills", flush=True)
    callers.start()
    progress = Progress(len(rows))
    outcomes, _ = await asyncio.gather(score(rows, progress), play_nightmares(progress))
    await asyncio.to_thread(callers.stop)
    print_table(rows, outcomes)
    print(f"requests: {callers.describe()}", flush=True)
    mistakes = find_mistakes(rows, outcomes) + [f"lost request: {cause}" for cause in callers.lost]
    mistakes += await play_coding()
    for mistake in mistakes[:10]:
        print(f"  {mistake}", file=sys.stderr)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
