"""A checks service of a real run is hurt, filled and left: no row lost, none twice, none that is ours a zero."""

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from checks_stage import HONEST_S, Stage, list_children, open_stage

from retinue.client import Check, Outcome, OutcomeKind, Retinue
from support.real_run import wait_for

QUEUE = 150
GROWTH_BYTES = 6 * 2**20


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("hurt"), queue=QUEUE) as stage:
        yield stage


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[Retinue]:
    async with Retinue.from_env(stage.env) as client:
        yield client


def build_rows(count: int, sleep_s: float) -> list[Check]:
    """Every other one is wrong, so that a zero can be told from a loss."""
    words = [(f"tide {number}", f"tide {number - number % 2}") for number in range(count)]
    return [Check("neighbour", response, gold, {"sleep_s": sleep_s}, timeout_s=3.0) for response, gold in words]


def assert_scored(outcomes: dict[int, Outcome], count: int) -> None:
    assert sorted(outcomes) == list(range(count))
    assert Counter(outcome.outcome for outcome in outcomes.values()) == {OutcomeKind.SCORED: count}
    assert {index: outcome.score for index, outcome in outcomes.items()} == {
        index: float(index % 2 == 0) for index in range(count)
    }


def count_outcomes(stage: Stage) -> float:
    return sum(value for line, value in stage.metrics().items() if line.startswith("outcomes_total"))


async def collect(client: Retinue, rows: list[Check], after: int = 0, act: Any = None) -> dict[int, Outcome]:
    """All outcomes by index; `act` is done once when `after` of them are there. An index that comes twice fails."""
    outcomes: dict[int, Outcome] = {}
    async for index, outcome in client.check_many(rows, deadline_s=90):
        assert index not in outcomes
        outcomes[index] = outcome
        if act is not None and len(outcomes) == after:
            act()
    return outcomes


async def wait_for_metric(stage: Stage, name: str, value: float) -> None:
    await asyncio.to_thread(wait_for, f"{name} to be {value:g}", lambda: stage.metric(name) == value, 15.0)


async def test_a_warm_parent_killed_under_sixty_checks_loses_none_of_them(stage: Stage, client: Retinue) -> None:
    counted, launches = count_outcomes(stage), stage.metric("warm_launches_total")
    kill = lambda: os.kill(list_children(stage.pids["checks"])[0], signal.SIGKILL)  # noqa: E731
    outcomes = await collect(client, build_rows(60, 0.05), 10, kill)
    assert_scored(outcomes, 60)
    assert count_outcomes(stage) - counted == 60
    assert stage.metric("warm_launches_total") > launches
    assert {outcome.incarnation for outcome in outcomes.values()} == {"checks/0#1"}


async def test_four_callers_share_the_slots_whoever_came_first(stage: Stage) -> None:
    clients = [Retinue.from_env(stage.env, caller=f"caller-{number}") for number in range(4)]
    done: Counter[int] = Counter()

    async def call(number: int, count: int) -> None:
        async for _, outcome in clients[number].check_many(build_rows(count, 0.02)):
            assert outcome.outcome is OutcomeKind.SCORED
            done[number] += 1

    first = asyncio.create_task(call(0, 110))
    await asyncio.to_thread(wait_for, "the first caller's line", lambda: stage.metric("queued") > 80, 30.0)
    start = done[0]
    await asyncio.gather(*(call(number, 8) for number in (1, 2, 3)))
    meanwhile = done[0] - start
    first.cancel()
    await asyncio.wait([first])
    for client in clients:
        await client.close()
    assert [done[number] for number in (1, 2, 3)] == [8, 8, 8]
    assert meanwhile <= 40


async def test_a_full_queue_says_when_to_come_again_and_the_client_gets_all_its_answers(
    stage: Stage, client: Retinue
) -> None:
    full = asyncio.create_task(
        asyncio.to_thread(post, stage, "/v1/checks", {"checks": encode(build_rows(QUEUE, 0.03))})
    )
    await asyncio.to_thread(wait_for, "a full queue", lambda: stage.metric("queued") > QUEUE - 30, 30.0)
    status, headers, body = await asyncio.to_thread(
        post, stage, "/v1/checks", {"checks": encode(build_rows(QUEUE - 1, 0.03))}
    )
    assert status == 429
    assert 1 <= int(headers["Retry-After"]) <= 60
    assert b"queue is full" in body
    refused = stage.metric("refused_total")
    assert_scored(await collect(client, build_rows(120, 0.0)), 120)
    assert stage.metric("refused_total") > refused
    status, _, body = await full
    assert status == 200
    assert len(body.splitlines()) == QUEUE


def encode(rows: list[Check]) -> list[dict[str, Any]]:
    return [{name: getattr(row, name) for name in ("verifier", "response", "gold", "args")} for row in rows]


def post(stage: Stage, page: str, body: Any) -> tuple[int, Any, bytes]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(stage.env["RETINUE_CHECKS_URL"] + page, json.dumps(body).encode())
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


async def test_when_the_caller_goes_its_checks_stop(stage: Stage, client: Retinue) -> None:
    await wait_for_metric(stage, "running", 0)
    cancelled = stage.metric("cancelled_total")
    rows = [Check("evil", "import time; time.sleep(60)", timeout_s=3.0)] * 20
    call = asyncio.create_task(collect(client, rows))
    await wait_for_metric(stage, "running", 2)
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    await wait_for_metric(stage, "running", 0)
    await wait_for_metric(stage, "queued", 0)
    assert stage.metric("cancelled_total") - cancelled == 20
    outcome = await client.check("exact", response="a", gold="a", deadline_s=HONEST_S)
    assert outcome.score == 1.0


async def test_the_slot_of_a_killed_check_is_free_while_its_process_is_still_dying(
    stage: Stage, client: Retinue
) -> None:
    """Both slots are taken by checks that have much to give back when they die; the third has waited for one."""
    hog = "kept = bytearray(400 * 2**20)\nwhile True: pass"
    rows = [Check("evil", hog, timeout_s=0.3)] * 2 + [Check("exact", "a", "a")] * 2
    loop = asyncio.get_running_loop()
    at: dict[int, float] = {}
    async for index, outcome in client.check_many(rows, deadline_s=30):
        at[index] = loop.time()
        assert outcome.outcome is (OutcomeKind.TIMED_OUT if index < 2 else OutcomeKind.SCORED), outcome
    assert min(at[2], at[3]) - min(at[0], at[1]) < HONEST_S


async def test_two_thousand_checks_leave_nothing_in_memory(stage: Stage, client: Retinue) -> None:
    rows = [Check("exact", f"tide {number}", "tide 0") for number in range(500)]
    await collect(client, rows)
    checks = stage.pids["checks"]
    warm = list_children(checks)[0]
    before = [read_rss(pid) for pid in (checks, *list_children(warm))]
    descriptors = count_descriptors(checks)
    for _ in range(3):
        outcomes = await collect(client, rows)
        assert len(outcomes) == 500
        assert sum(outcome.score or 0.0 for outcome in outcomes.values()) == 1.0
    after = [read_rss(pid) for pid in (checks, *list_children(warm))]
    assert max(new - old for new, old in zip(after, before, strict=True)) < GROWTH_BYTES, (before, after)
    assert count_descriptors(checks) <= descriptors + 16


def read_rss(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def count_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_a_host_killed_under_a_hundred_checks_loses_none_of_them(stage: Stage, client: Retinue) -> None:
    """Last: it is another incarnation afterwards."""
    outcomes = await collect(client, build_rows(100, 0.03), 20, lambda: os.kill(stage.pids["checks"], signal.SIGKILL))
    assert_scored(outcomes, 100)
    assert {outcome.incarnation for outcome in outcomes.values()} == {"checks/0#1", "checks/0#2"}
    now = stage.read_pids()
    same = set(now) - {"checks", "warm"}
    assert {role: now[role] for role in same} == {role: stage.pids[role] for role in same}
