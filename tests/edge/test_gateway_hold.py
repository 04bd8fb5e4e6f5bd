"""Requests that arrive while nothing can answer them."""

import asyncio
import json

from aiohttp import web
from gateway_scenes import DEADLINE_S, make_backend, make_route, open_scene, wait_until

from retinue.channel.messages import Membership


async def test_a_request_held_while_nothing_is_ready_is_answered_once_a_replica_is_published() -> None:
    async with open_scene() as scene:
        scene.publish(make_route())

        async def handle(request: web.BaseRequest) -> web.Response:
            return web.Response(body=b"got " + await request.read())

        asked = scene.start_asking("/judge/x", "POST", body=b"question")
        await wait_until(lambda: scene.proxy.room.count == 1)
        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        answer = await asyncio.wait_for(asked, DEADLINE_S)
        assert (answer.status, answer.body) == (200, b"got question")
        assert scene.proxy.room.count == 0


async def test_held_requests_reach_the_backend_in_their_order_of_arrival() -> None:
    async with open_scene() as scene:
        scene.publish(make_route())
        order: list[str] = []

        async def handle(request: web.BaseRequest) -> web.Response:
            order.append(request.raw_path)
            return web.Response()

        asked = []
        for at in range(8):
            asked.append(scene.start_asking(f"/judge/{at}"))
            await wait_until(lambda wanted=at + 1: scene.proxy.room.count == wanted)
        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S)
        assert order == [f"/{at}" for at in range(8)]


async def test_before_the_first_membership_no_service_is_unknown() -> None:
    async with open_scene() as scene:

        async def handle(request: web.BaseRequest) -> web.Response:
            return web.Response(body=b"late")

        asked = scene.start_asking("/judge/")
        await wait_until(lambda: scene.proxy.room.count == 1)
        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"late"


async def test_a_held_request_whose_service_turns_out_unknown_is_told_so_at_once() -> None:
    async with open_scene() as scene:
        asked = scene.start_asking("/juge/")
        await wait_until(lambda: scene.proxy.room.count == 1)
        scene.publish(make_route())
        answer = await asyncio.wait_for(asked, DEADLINE_S)
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["type"]) == (404, "retinue_unknown_service")
        assert "'judge'" in error["message"]


async def test_when_the_hold_is_over_the_answer_is_a_typed_error_no_client_retries_for_ever() -> None:
    async with open_scene() as scene:
        scene.publish(make_route(hold_s=0.05, cause="judge/0 exited 1"))
        answer = await scene.ask("/judge/")
        error = json.loads(answer.body)["error"]
        assert answer.status == 409
        assert answer.headers["x-retinue-outcome"] == "infra_failed"
        assert answer.headers["x-should-retry"] == "false"
        assert error["type"] == "retinue_unavailable"
        assert (error["service"], error["retryable"]) == ("judge", False)
        assert error["since"].endswith("+00:00")
        assert "judge/0 exited 1" in error["message"]
        assert scene.proxy.counts.failed == 1


async def test_a_service_without_hold_answers_at_once() -> None:
    async with open_scene() as scene:
        scene.publish(make_route(hold_s=0))
        assert (await scene.ask("/judge/")).status == 409


async def test_the_request_above_the_bound_is_refused_at_once_and_the_held_ones_stay() -> None:
    async with open_scene(held_max=2) as scene:
        scene.publish(make_route())
        held = [scene.start_asking("/judge/") for _ in range(2)]
        await wait_until(lambda: scene.proxy.room.count == 2)
        answer = await scene.ask("/judge/")
        assert answer.status == 409
        assert "are held already" in json.loads(answer.body)["error"]["message"]
        assert [task.done() for task in held] == [False, False]


async def test_held_bodies_above_the_byte_bound_are_refused_at_once() -> None:
    async with open_scene(kept_bytes_max=1000) as scene:
        scene.publish(make_route())
        held = scene.start_asking("/judge/", "POST", body=b"x" * 900)
        await wait_until(lambda: scene.proxy.room.count == 1)
        answer = await scene.ask("/judge/", "POST", body=b"x" * 900)
        assert answer.status == 409
        assert not held.done()
        assert scene.proxy.budget.used_bytes == 900


async def test_above_the_byte_bound_a_request_still_passes_while_a_backend_is_there() -> None:
    async with open_scene(kept_bytes_max=100) as scene:

        async def handle(request: web.BaseRequest) -> web.Response:
            return web.Response(text=str(len(await request.read())))

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        assert (await scene.ask("/judge/", "POST", body=b"x" * 5000)).body == b"5000"
        assert scene.proxy.budget.used_bytes == 0


async def test_a_client_that_leaves_while_held_frees_its_place_and_its_bytes() -> None:
    async with open_scene() as scene:
        scene.publish(make_route())
        client = await scene.connect()
        await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n\r\nhello")
        await wait_until(lambda: scene.proxy.room.count == 1)
        client.close()
        await wait_until(lambda: scene.proxy.room.count == 0 and scene.proxy.budget.used_bytes == 0)


async def test_a_client_that_leaves_behind_a_long_unread_body_frees_its_place_too() -> None:
    async with open_scene() as scene:
        scene.publish(make_route())
        client = await scene.connect()
        head = b"POST /judge/ HTTP/1.1\r\nHost: g\r\nContent-Length: 8000000\r\n\r\n"
        client.writer.write(head + b"x" * 600_000)
        await wait_until(lambda: scene.proxy.room.count == 1)
        client.writer.close()
        await wait_until(lambda: scene.proxy.room.count == 0)


async def test_a_membership_that_arrives_again_wakes_nobody_for_nothing() -> None:
    async with open_scene() as scene:
        scene.publish(make_route())
        held = scene.start_asking("/judge/")
        await wait_until(lambda: scene.proxy.room.count == 1)
        stale = Membership(epoch=scene.epoch, routes=(make_route(hold_s=0),))
        assert not scene.proxy.table.apply(stale, is_first=False)
        scene.publish(make_route())
        await wait_until(lambda: scene.proxy.room.count == 1)
        assert not held.done()
