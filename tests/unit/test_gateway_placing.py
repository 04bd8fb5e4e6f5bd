"""Which of two hosts makes a sandbox, and how ids and creates are read."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from retinue.channel.messages import Backend
from retinue.gateway.placing import COLD, Amounts, Capacity, Placing, compute_load, compute_rank, parse_create
from retinue.gateway.routes import RouteTable, Slot
from retinue.gateway.sandboxes import find_sandbox, is_create, parse_replica


class Words(Placing):
    """Hosts that say what a test wants, with nobody asked."""

    def __init__(self, said: dict[str, Capacity | None], node: str = "n1") -> None:
        table = RouteTable(on_change=lambda _: None)
        table.node = node
        super().__init__(table, None, None, sample=lambda slots, count: list(slots)[:count])  # type: ignore[arg-type]
        self._said = said

    async def _ask(self, slot: Slot) -> Capacity | None:
        return self._said[slot.backend.replica]


def slot(index: int, node: str = "n1") -> Slot:
    return Slot("sandbox", Backend(f"sandbox/{index}", 1, node, "127.0.0.1", 9))


def capacity(used: int, count: int = 100, **fields: Any) -> Capacity:
    whole = Amounts(count, 1000, 1000)
    return Capacity(budget=whole, used=Amounts(used, 0, 0), **fields)


async def choose(said: Sequence[Capacity | None], nodes: Sequence[str] = ("n1", "n1"), image: str = "img") -> str:
    slots = [slot(index, node) for index, node in enumerate(nodes)]
    words = Words({one.backend.replica: word for one, word in zip(slots, said, strict=True)})
    chosen = await words.choose(slots, b'{"image": "%s"}' % image.encode())
    assert chosen is not None
    return chosen.backend.replica


@pytest.mark.parametrize(
    ("said", "better"),
    [
        ((capacity(50), capacity(49)), 1),
        ((capacity(10), None), 0),
        ((None, capacity(99)), 1),
        ((None, capacity(0, creates=False)), 0),
        ((capacity(0, creates=False), capacity(99)), 1),
        ((capacity(40), capacity(50, images=("img",))), 1),  # Warm, and little more in use.
        ((capacity(40), capacity(40 + int(COLD * 100) + 1, images=("img",))), 0),
        ((capacity(10, queued=60), capacity(60)), 1),
    ],
)
async def test_the_better_of_two(said: Sequence[Capacity | None], better: int) -> None:
    assert await choose(said) == f"sandbox/{better}"
    assert await choose(said[::-1]) == f"sandbox/{1 - better}"


async def test_the_own_node_wins_a_tie_and_nothing_more() -> None:
    assert await choose((capacity(50), capacity(50)), ("n2", "n1")) == "sandbox/1"
    assert await choose((capacity(50), capacity(50)), ("n1", "n2")) == "sandbox/0"
    assert await choose((capacity(50), capacity(52)), ("n2", "n1")) == "sandbox/0"


async def test_a_second_of_creates_does_not_all_go_to_the_host_that_was_better_when_it_was_asked() -> None:
    words = Words({"sandbox/0": capacity(0), "sandbox/1": capacity(10)})
    slots = [slot(0), slot(1)]
    chosen = [await words.choose(slots, b"{}") for _ in range(40)]
    counts = [chosen.count(one) for one in slots]
    assert counts == [25, 15]


def test_the_scarcest_means_is_what_counts() -> None:
    budget = Amounts(100, 1000, 50)
    assert compute_load(Capacity(budget=budget, used=Amounts(10, 100, 5)), 0) == pytest.approx(0.1)
    assert compute_load(Capacity(budget=budget, used=Amounts(10, 900, 5)), 0) == pytest.approx(0.9)
    assert compute_load(Capacity(budget=budget, used=Amounts(10, 100, 50)), 0) == pytest.approx(1.0)
    assert compute_load(Capacity(budget=budget, queued=100, used=Amounts(10, 0, 0)), 10) == pytest.approx(1.2)


def test_the_loss_of_a_host_moves_only_the_keys_that_it_had() -> None:
    hosts = [f"sandbox/{index}" for index in range(8)]
    keys = [f"key {number}" for number in range(400)]
    before = {key: max(hosts, key=lambda host: compute_rank(key, host)) for key in keys}
    after = {key: max(hosts[1:], key=lambda host: compute_rank(key, host)) for key in keys}
    assert {key for key in keys if before[key] != after[key]} == {key for key in keys if before[key] == hosts[0]}
    assert len(set(before.values())) == 8


async def test_no_host_is_no_choice() -> None:
    assert await Words({}).choose([], b"{}") is None


async def test_a_host_that_is_not_there_says_nothing() -> None:
    table = RouteTable(on_change=lambda _: None)
    async with aiohttp.ClientSession() as session:
        said = await asyncio.wait_for(Placing(table, session, None)._ask(slot(0)), 10)
    assert said is None


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"image": 7}', b'{"key": 7}'])
def test_a_create_that_cannot_be_read_is_for_the_host_to_refuse(body: bytes) -> None:
    assert parse_create(body).image == ""


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("/v1/sandboxes/a.0-b/exec", "a.0-b"),
        ("/v1/sandboxes/a.0-b?x=/v1/sandboxes/c", "a.0-b"),
        ("/v1/sandboxes", "header"),
        ("/v1/sandboxes/", "header"),
        ("/v1/sandboxes?x=1", "header"),
        ("/health", "header"),
        ("/x/v1/sandboxes/a.0-b", "header"),
    ],
)
def test_the_path_says_which_sandbox_before_the_header_does(target: str, found: str) -> None:
    assert find_sandbox(target, {"X-Retinue-Sandbox": "header"}) == found
    assert find_sandbox(target, {}) == ("" if found == "header" else found)


def test_ids_name_their_replica() -> None:
    assert parse_replica("sandbox.3-0123456789abcdef") == "sandbox/3"
    assert parse_replica("my.box-2.14-0123456789abcdef") == "my.box-2/14"
    for wrong in (
        "sandbox.3-0123456789ABCDEF",
        "sandbox.3-0123",
        "sandbox-0123456789abcdef",
        "sandbox.3-0123456789abcdef0",
    ):
        assert parse_replica(wrong) == ""


def test_only_a_post_of_the_collection_makes_one() -> None:
    assert is_create("POST", "/v1/sandboxes")
    assert is_create("POST", "/v1/sandboxes?x=1")
    assert not is_create("GET", "/v1/sandboxes")
    assert not is_create("POST", "/v1/sandboxes/a/exec")
