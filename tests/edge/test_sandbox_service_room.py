"""Keys, leases, budgets and queues of the sandbox service: who gets a sandbox when there are not enough."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sandbox_scenes import until
from sandbox_service import LIMITS, Refusal, Service, real_service

from retinue.sandbox.budget import Weight


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp()


async def create(service: Service, caller: str = "a", **fields: Any) -> dict[str, Any]:
    body = {"image": service.image} | fields
    made: dict[str, Any] = await service.ask("POST", "/v1/sandboxes", body, headers={"X-Retinue-Caller": caller})
    return made


async def test_a_hundred_creates_at_once_all_get_one_and_the_shards_share_them(base: Path) -> None:
    async with real_service(base) as service:
        made = await asyncio.gather(*(create(service) for _ in range(100)))
        assert len({one["id"] for one in made}) == 100
        assert [slot.live_count for slot in service.host.shards.slots] == [50, 50]
        texts = await asyncio.gather(*(service.text(one["id"], f"echo {one['id']}") for one in made))
        assert texts == [one["id"] for one in made]
        await asyncio.gather(*(service.ask("DELETE", f"/v1/sandboxes/{one['id']}") for one in made))
        assert service.host.budget.used == Weight(0, 0, 0)
        assert service.host.standing.counts["late"] == 0
        assert [slot.live_count for slot in service.host.shards.slots] == [0, 0]


async def test_the_same_key_makes_one_sandbox_at_once_or_later_and_no_other_contents(base: Path) -> None:
    async with real_service(base) as service:
        first = await asyncio.gather(*(create(service, key="k") for _ in range(10)))
        assert len({one["id"] for one in first}) == 1
        assert sum(one["is_new"] for one in first) == 1
        again = await create(service, key="k")
        assert (again["id"], again["is_new"]) == (first[0]["id"], False)
        assert (await create(service, key="other"))["id"] != again["id"]
        with pytest.raises(Refusal) as caught:
            await create(service, key="k", env={"A": "b"})
        assert caught.value.kind == "sandbox_key_reused"
        await service.ask("DELETE", f"/v1/sandboxes/{again['id']}")
        with pytest.raises(Refusal) as caught:
            await create(service, key="k")
        assert caught.value.kind == "sandbox_destroyed"


async def test_a_key_whose_create_failed_can_be_used_again(base: Path) -> None:
    async with real_service(base) as service:
        for _ in range(2):
            with pytest.raises(Refusal) as caught:
                await create(service, key="k", image="/no/such/image")
            assert caught.value.kind == "sandbox_no_image"
        assert (await create(service, key="k"))["is_new"]


async def test_a_caller_who_hangs_up_while_his_keyed_create_is_under_way_finds_it_later(base: Path) -> None:
    async with real_service(base) as service:
        asking = asyncio.ensure_future(create(service, key="k"))
        await until(lambda: len(service.host.seats) == 1)
        asking.cancel()
        await asyncio.wait([asking])
        made = await create(service, key="k")
        assert len(service.host.seats.list()) == 1
        assert made["is_new"] is False


async def test_a_caller_who_hangs_up_while_his_create_waits_leaves_no_sandbox_and_no_room_taken(base: Path) -> None:
    async with real_service(base, budget=Weight(1, 2**40, 10**6)) as service:
        first = await create(service)
        asking = asyncio.ensure_future(create(service, "gone"))
        await until(lambda: service.host.admission.queued_count == 1)
        asking.cancel()
        await until(lambda: service.host.admission.queued_count == 0)
        await service.ask("DELETE", f"/v1/sandboxes/{first['id']}")
        assert service.host.budget.used.count == 0
        assert (await create(service))["wait_s"] == 0.0


async def test_creates_beyond_the_budget_wait_in_turn_between_callers_and_tell_the_wait_apart(base: Path) -> None:
    async with real_service(base, budget=Weight(1, 2**40, 10**6)) as service:
        names, order = [(await create(service))["id"]], []

        async def wait(caller: str) -> None:
            made = await create(service, caller)
            order.append(caller)
            names.append(made["id"])
            assert made["wait_s"] > 0

        waiting = []
        for caller in ("greedy", "greedy", "greedy", "modest"):
            waiting.append(asyncio.ensure_future(wait(caller)))
            await until(lambda: service.host.admission.queued_count == len(waiting))
        for count in range(4):
            await service.ask("DELETE", f"/v1/sandboxes/{names[-1]}")
            await until(lambda count=count: len(order) == count + 1)
        await asyncio.gather(*waiting)
        # The first in line had his turn when modest came; after that they take turns.
        assert order == ["greedy", "greedy", "modest", "greedy"]


async def test_a_full_queue_is_told_at_once_with_place_and_time_and_a_wait_has_its_end(base: Path) -> None:
    async with real_service(base, budget=Weight(1, 2**40, 10**6), queue=1) as service:
        first = await create(service)
        waiting = asyncio.ensure_future(create(service))
        await until(lambda: service.host.admission.queued_count == 1)
        # One more has its turn and waits for room; then the queue itself holds one.
        second = asyncio.ensure_future(create(service))
        await until(lambda: service.host.admission.queued_count == 2)
        with pytest.raises(Refusal) as caught:
            await create(service)
        assert (caught.value.status, caught.value.kind) == (429, "sandbox_full")
        assert caught.value.error["position"] == 2
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert caught.value.error["retryable"]
        await service.ask("DELETE", f"/v1/sandboxes/{first['id']}")
        made = await waiting
        with pytest.raises(Refusal) as caught:
            await asyncio.gather(second, create(service, queue_s=0.2))
        assert "no room within 0.2 s" in caught.value.error["message"]
        second.cancel()
        await service.ask("DELETE", f"/v1/sandboxes/{made['id']}")


async def test_what_can_never_fit_is_refused_and_holds_up_nobody(base: Path) -> None:
    async with real_service(base, budget=Weight(5, 2 * LIMITS.weight_bytes, 10**6)) as service:
        with pytest.raises(Refusal) as caught:
            await create(service, limits={"memory": "1TiB"})
        assert caught.value.status == 400
        assert "memory_bytes" in caught.value.error["message"]
        await create(service)


async def test_a_lease_that_ran_out_is_a_typed_410_and_its_room_is_free(base: Path) -> None:
    async with real_service(base) as service:
        name = await service.create(lease_s=1)
        await until(lambda: len(service.host.seats) == 0)
        for method, path in (("POST", "/exec"), ("GET", ""), ("POST", "/renew"), ("GET", "/file?path=/x")):
            refusal = await service.refusal(method, f"/v1/sandboxes/{name}{path}", {} if method == "POST" else None)
            assert (refusal.status, refusal.kind) == (410, "sandbox_expired")
        assert service.host.budget.used.count == 0


async def test_a_command_that_runs_holds_the_lease_and_renewing_makes_it_longer(base: Path) -> None:
    async with real_service(base) as service:
        busy, renewed, idle = [await service.create(lease_s=1) for _ in range(3)]
        expires_utc = (await service.ask("POST", f"/v1/sandboxes/{renewed}/renew", {"lease_s": "1h"}))["expires_utc"]
        assert expires_utc > (await service.ask("GET", f"/v1/sandboxes/{busy}"))["expires_utc"] + 1000
        await service.text(busy, "mkfifo /gate")
        running = asyncio.ensure_future(service.text(busy, "cat < /gate", timeout_s=50))
        await until(lambda: len(service.host.seats) == 2)
        refusal = await service.refusal("GET", f"/v1/sandboxes/{idle}")
        assert refusal.kind == "sandbox_expired"
        assert not running.done()
        await service.text(busy, "echo open > /gate")
        assert await running == "open"
        assert await service.text(renewed, "echo here") == "here"


async def test_a_stopped_service_makes_no_more_and_says_so(base: Path) -> None:
    async with real_service(base) as service:
        service.host.stop()
        with pytest.raises(Refusal) as caught:
            await create(service)
        assert (caught.value.status, caught.value.kind) == (503, "infra_failed")
        assert "stopping" in caught.value.error["cause"]
