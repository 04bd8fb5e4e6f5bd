"""Who is searched for next: bounded, in turn, and what the host does when a search fails."""

import asyncio
import importlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from client_scenes import until
from retrieval_scenes import TEXTS, Caller, build, serving_index, write_plugin

from retinue.retrieval.host import Host
from retinue.retrieval.records import PASSAGES
from retinue.retrieval.settings import Settings

QUEUE = 20


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("queued")
    write_plugin(place, "queue_plugin")
    build(place, [*TEXTS, "fail passages of the reranker"])
    return place


@pytest.fixture
def plugin(directory: Path) -> ModuleType:
    plugin = importlib.import_module("queue_plugin")
    plugin.let_go.set()
    return plugin


@pytest.fixture
async def stage(directory: Path, plugin: ModuleType) -> AsyncIterator[tuple[Host, Caller]]:
    """One worker, which a test may hold in the reranker."""
    async with serving_index(directory, reranker="queue_plugin:wait", workers=1, queue=QUEUE) as (host, caller):
        await until(lambda: host.is_ready, "ready")
        plugin.let_go.clear()
        yield host, caller
        plugin.let_go.set()
        await until(lambda: not host.running, "nothing runs")


def ask(caller: Caller, count: int, name: str = "a") -> "asyncio.Task[tuple[int, Any, Any]]":
    return asyncio.create_task(caller.post({"queries": ["cat"] * count}, {"X-Retinue-Caller": name}))


async def test_a_full_queue_says_when_to_come_again_and_loses_nothing_it_took(
    stage: tuple[Host, Caller], plugin: ModuleType
) -> None:
    host, caller = stage
    taken = [ask(caller, 1), ask(caller, QUEUE)]
    await until(lambda: host.queued == QUEUE, "a full queue")
    status, headers, body = await caller.post({"query": "cat"})
    assert status == 429
    assert 1 <= int(headers["Retry-After"]) <= 60
    assert (body["error"]["type"], body["error"]["retryable"]) == ("retrieval_full", True)
    assert await caller.read_metric("refused_total") == 1
    plugin.let_go.set()
    assert [len(answer["result"]) for _, _, answer in await asyncio.gather(*taken)] == [1, QUEUE]
    assert (await caller.post({"query": "cat"}))[0] == 200


async def test_a_batch_is_taken_whole_or_not_at_all(stage: tuple[Host, Caller], plugin: ModuleType) -> None:
    host, caller = stage
    first = [ask(caller, 1), ask(caller, QUEUE - 5)]
    await until(lambda: host.queued == QUEUE - 5, "a queue with room for five")
    assert (await ask(caller, 6))[0] == 429
    assert host.queued == QUEUE - 5
    plugin.let_go.set()
    await asyncio.gather(*first)


async def test_one_query_does_not_wait_behind_another_callers_batch(
    stage: tuple[Host, Caller], plugin: ModuleType
) -> None:
    host, caller = stage
    batch = ask(caller, 15, "batch")
    await until(lambda: host.queued == 14, "a batch that waits")
    single = ask(caller, 1, "single")
    await until(lambda: host.queued == 15, "a single one that waits")
    plugin.let_go.set()
    assert (await single)[0] == 200
    assert not batch.done()
    assert (await batch)[0] == 200


async def test_a_caller_that_goes_takes_its_queries_along(stage: tuple[Host, Caller], plugin: ModuleType) -> None:
    host, caller = stage
    batch = ask(caller, 12)
    await until(lambda: host.queued == 11, "a batch that waits")
    batch.cancel()
    await until(lambda: not host.queued, "an empty queue")
    assert host.tally.cancelled == 11
    plugin.let_go.set()
    assert (await caller.post({"query": "cat"}))[0] == 200


async def test_a_search_that_fails_is_our_fault_and_half_an_answer_is_none(directory: Path, plugin: ModuleType) -> None:
    async with serving_index(directory, reranker="queue_plugin:fail", workers=2) as (host, caller):
        await until(lambda: host.is_ready, "ready")
        status, headers, body = await caller.post({"queries": ["cat", "fail", "dog"]})
        assert (status, headers["X-Retinue-Outcome"], headers["X-Should-Retry"]) == (409, "infra_failed", "false")
        assert "result" not in body
        assert "out of memory" in body["error"]["message"]
        assert await caller.read_metric("failed_total") == 1
        assert (await caller.post({"query": "cat"}))[0] == 200
        assert (await caller.get("/health"))[0] == 200


async def test_an_index_that_breaks_while_it_is_served_is_never_searched_again(tmp_path: Path) -> None:
    build(tmp_path)
    async with serving_index(tmp_path) as (host, caller):
        await until(lambda: host.is_ready, "ready")
        os.truncate(tmp_path / "index" / PASSAGES, 10)
        status, headers, body = await caller.post({"query": "postman"})
        assert (status, headers["X-Retinue-Outcome"], body["error"]["type"]) == (
            409,
            "infra_failed",
            "retrieval_failed",
        )
        assert host.broken.done()
        status, _, body = await caller.post({"query": "harbour"})
        assert (status, body["error"]["type"]) == (409, "retrieval_unusable")
        status, text = await caller.get("/health")
        assert status == 503
        assert PASSAGES in text


async def test_before_the_index_is_open_nothing_is_answered_and_nothing_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plugin(tmp_path, "slow_plugin")
    plugin = importlib.import_module("slow_plugin")
    build(tmp_path)
    async with serving_index(tmp_path, reranker="slow_plugin:wait") as (host, caller):
        # The one query that is tried first is held by the reranker.
        status, headers, body = await caller.post({"query": "cat"})
        assert (status, headers["Retry-After"], body["error"]["type"]) == (503, "1", "retrieval_loading")
        assert (await caller.get("/health"))[0] == 503
        assert (await caller.get("/v1/index"))[0] == 200
        plugin.let_go.set()
        await until(lambda: host.is_ready, "ready")
        assert (await caller.get("/health"))[0] == 200


async def test_a_host_that_stops_finishes_what_it_took(stage: tuple[Host, Caller], plugin: ModuleType) -> None:
    host, caller = stage
    batch = ask(caller, 8)
    await until(lambda: host.queued == 7, "a batch that waits")
    draining = asyncio.create_task(host.drain(20.0))
    await asyncio.sleep(0)
    assert (await caller.get("/health"))[0] == 503
    plugin.let_go.set()
    await draining
    assert (await batch)[0] == 200


def test_defaults_let_a_whole_batch_of_rollouts_wait() -> None:
    assert Settings("x").queue >= 8192
