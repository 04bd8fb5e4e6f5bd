"""The settings of a service: how many at one replica, how many wait, how long, and what is said when it is over."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from aiohttp import web
from far_scenes import open_nodes
from gateway_scenes import DEADLINE_S, find_closed_port, make_backend, open_scene, wait_until

from retinue.channel.messages import Backend, Route
from retinue.gateway.hold import ReplayBudget, WaitingRoom
from retinue.terms.calls import CallRules


def make_limited(*backends: Backend, service: str = "judge", hold_s: float = 60.0, **rules: object) -> Route:
    return Route(service=service, backends=backends, hold_s=hold_s, rules=CallRules(**rules))  # type: ignore[arg-type]


@dataclass
class Turnstile:
    """A replica that keeps every request until it is told to let one go, and counts how many it has."""

    inside: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    most: int = 0
    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        name = request.raw_path
        gate = self.gates.setdefault(name, asyncio.Event())
        self.seen.append(name)
        self.inside.append(name)
        self.most = max(self.most, len(self.inside))
        try:
            await gate.wait()
        finally:
            self.inside.remove(name)
        return web.Response(text=name)

    def find_kept(self) -> str:
        """Find a request that is inside and was not told to go; empty: none."""
        return next((name for name in self.inside if not self.gates[name].is_set()), "")

    def let_go(self, name: str) -> None:
        self.gates.setdefault(name, asyncio.Event()).set()


async def test_a_replica_is_given_no_more_at_once_than_its_bound_and_the_others_follow_in_order() -> None:
    async with open_scene() as scene:
        turnstile = Turnstile()
        port = await scene.open_backend(turnstile.handle)
        scene.publish(make_limited(make_backend(port), concurrency=2))
        asked = []
        for number in range(6):
            asked.append(scene.start_asking(f"/judge/{number}"))
            await wait_until(lambda: len(turnstile.seen) + scene.proxy.room.count == len(asked))
        for number in range(6):
            await wait_until(lambda: f"/{number}" in turnstile.inside)  # noqa: B023 (looked at in this turn only)
            turnstile.let_go(f"/{number}")
        answers = await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S)
        assert [answer.body for answer in answers] == [f"/{number}".encode() for number in range(6)]
        assert (turnstile.most, turnstile.seen) == (2, [f"/{number}" for number in range(6)])
        assert scene.proxy.counts.failed == 0


async def test_the_bound_of_a_replica_holds_for_the_callers_of_all_nodes_together() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        turnstile = Turnstile()
        backend = await far.open_replica(turnstile.handle)
        for node, other in ((near, far), (far, near)):
            node.scene.publish(make_limited(backend, concurrency=2), peers=(other.peer(),))
        asked = [node.scene.start_asking(f"/judge/{node.name}-{number}") for node in nodes for number in range(3)]
        await wait_until(lambda: len(turnstile.inside) == 2 and sum(n.scene.proxy.room.count for n in nodes) == 4)
        for _ in asked:
            await wait_until(lambda: turnstile.find_kept() != "")
            turnstile.let_go(turnstile.find_kept())
        answers = await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S)
        assert [answer.status for answer in answers] == [200] * 6
        assert turnstile.most == 2


async def test_who_waits_from_far_for_a_busy_replica_keeps_nobody_from_a_free_one() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        stuck, quick = Turnstile(), Turnstile()
        backends = await far.open_replica(stuck.handle, "judge/0"), await far.open_replica(quick.handle, "judge/1")
        near.scene.publish(make_limited(backends[0]), peers=(far.peer(),))
        far.scene.publish(make_limited(*backends, concurrency=1), peers=(near.peer(),))
        from_far = [near.scene.start_asking(f"/judge/far-{number}") for number in range(3)]
        await wait_until(lambda: len(stuck.inside) == 1 and far.scene.proxy.room.count == 2)
        asked = []
        for number in range(3):
            asked.append(far.scene.start_asking(f"/judge/{number}"))
            await wait_until(lambda: len(quick.seen) + far.scene.proxy.room.count - 2 == len(asked))
        for number in range(3):
            await wait_until(lambda: quick.find_kept() == f"/{number}")  # noqa: B023 (looked at in this turn only)
            quick.let_go(f"/{number}")
        answers = await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S)
        assert [answer.status for answer in answers] == [200] * 3
        assert not any(task.done() for task in from_far)


async def test_a_caller_who_leaves_the_moment_he_is_called_hands_his_place_on() -> None:
    room = WaitingRoom()
    first, second = (asyncio.create_task(room.wait("judge", 60.0)) for _ in range(2))
    await wait_until(lambda: room.count == 2)
    room.wake_one("judge")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(second, 5)
    assert first.cancelled()
    assert (room.count, room.has_waiting("judge")) == (0, False)


async def test_a_full_queue_of_one_service_refuses_at_once_and_leaves_the_others_alone() -> None:
    async with open_scene() as scene:
        scene.publish(make_limited(queue=1), make_limited(service="corpus", queue=1))
        held = scene.start_asking("/judge/held")
        await wait_until(lambda: scene.proxy.room.count == 1)
        refused = await asyncio.wait_for(scene.ask("/judge/refused"), DEADLINE_S)
        error = json.loads(refused.body)["error"]
        assert (refused.status, error["type"], error["service"]) == (409, "retinue_unavailable", "judge")
        other = scene.start_asking("/corpus/held")
        await wait_until(lambda: scene.proxy.room.count == 2)
        assert not held.done()
        assert not other.done()


def test_the_bodies_of_one_service_take_nothing_of_anothers() -> None:
    budget = ReplayBudget(1000)
    assert budget.take("judge", 60, 100)
    assert not budget.take("judge", 60, 100)
    assert budget.take("corpus", 60, 100)
    assert (budget.used_bytes, budget.count_bytes("judge"), budget.count_bytes("corpus")) == (120, 60, 60)
    budget.give("judge", 60)
    assert budget.take("judge", 100, 100)
    assert not budget.take("big", 900, 900)


@pytest.mark.parametrize(("status", "is_retryable"), [(409, False), (424, False), (429, True), (503, True)])
async def test_the_service_chooses_what_its_outage_is_called_and_the_error_agrees_with_it(
    status: int, is_retryable: bool
) -> None:
    async with open_scene() as scene:
        broken = make_backend(find_closed_port())
        scene.publish(
            make_limited(hold_s=0.0, unavailable_status=status),
            make_limited(broken, service="broken", unavailable_status=status),
        )
        nothing_ready = await scene.ask("/judge/")
        unsent = await scene.ask("/broken/", headers="X-Retinue-Retry: never\r\n")
        for answer, kind in ((nothing_ready, "retinue_unavailable"), (unsent, "retinue_bad_gateway")):
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["type"], error["retryable"]) == (status, kind, is_retryable)
            assert answer.headers["x-should-retry"] == str(is_retryable).lower()
            assert answer.headers["x-retinue-outcome"] == "infra_failed"
        assert scene.proxy.counts.failed == 2


async def test_a_silent_replica_is_left_at_its_deadline_and_another_one_answers() -> None:
    async with open_scene() as scene:
        silent, asked = asyncio.Event(), []

        async def say_nothing(request: web.BaseRequest) -> web.Response:
            asked.append(request.raw_path)
            await silent.wait()
            return web.Response()

        async def answer(request: web.BaseRequest) -> web.Response:
            return web.Response(text="here")

        port = await scene.open_backend(say_nothing)
        stuck, alone = make_backend(port, "judge/0"), make_backend(port, "lonely/0")
        well = make_backend(await scene.open_backend(answer), "judge/1")
        scene.publish(
            make_limited(stuck, well, read_timeout_s=0.2), make_limited(alone, service="lonely", read_timeout_s=0.2)
        )
        answers = [await asyncio.wait_for(scene.ask("/judge/x"), DEADLINE_S) for _ in range(5)]
        assert [one.body for one in answers] == [b"here"] * 5
        # The third silence in a row leaves it out.
        assert (asked, scene.proxy.table.dropped()) == (["/x"] * 3, ("judge/0",))
        # Where nobody answers, two are tried and not five: each costs the deadline.
        lost = await asyncio.wait_for(scene.ask("/lonely/y"), DEADLINE_S)
        assert (lost.status, json.loads(lost.body)["error"]["type"]) == (409, "retinue_bad_gateway")
        assert asked.count("/y") == 2


async def test_a_slow_answer_within_the_deadline_is_not_cut_however_long_it_is() -> None:
    async with open_scene() as scene:

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n")
            for letter in b"slowly..":
                await asyncio.sleep(0.1)  # The pace is what is tested.
                writer.write(bytes([letter]))
            await reader.read()

        scene.publish(make_limited(make_backend(await scene.open_raw_backend(drip)), read_timeout_s=0.5))
        assert (await asyncio.wait_for(scene.ask("/judge/"), DEADLINE_S)).body == b"slowly.."
        assert scene.proxy.counts.failed == 0
