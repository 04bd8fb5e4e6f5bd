"""What a gateway must not do: believe every caller or the site's proxy, ask again too late, hold without end."""

import asyncio
import os

import pytest
from aiohttp import web
from gateway_scenes import TOKEN, make_backend, make_route, open_scene, wait_until


async def answer_ok(request: web.BaseRequest) -> web.Response:
    return web.Response(text="ok")


async def test_a_connection_of_another_users_uid_needs_the_token() -> None:
    # Here the owner is somebody else, and we are the stranger: no second user is needed.
    async with open_scene(own_uid=os.getuid() + 1) as scene:
        scene.publish(make_route(make_backend(await scene.open_backend(answer_ok))))
        assert (await scene.ask("/judge/")).status == 403
        assert (await scene.ask("/judge/", headers=f"X-API-Key: {TOKEN}\r\n")).status == 200


async def test_a_proxy_in_the_environment_changes_nothing_for_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def catch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nproxy")
        await writer.drain()

    async with open_scene() as scene:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{await scene.open_raw_backend(catch)}")
        scene.publish(make_route(make_backend(await scene.open_backend(answer_ok))))
        assert (await scene.ask("/judge/")).body == b"ok"
        assert asked == []


async def test_a_request_is_not_sent_again_once_a_byte_of_its_answer_reached_the_client() -> None:
    asked: list[bytes] = []
    go_on = asyncio.Event()

    async def break_midway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
        await go_on.wait()

    async with open_scene() as scene:
        scene.publish(make_route(make_backend(await scene.open_raw_backend(break_midway))))
        client = await scene.connect()
        await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        await client.reader.readuntil(b"hello")
        rest = asyncio.create_task(client.reader.read())
        go_on.set()
        try:
            await wait_until(lambda: rest.done() or len(asked) > 1)
            assert len(asked) == 1
        finally:
            rest.cancel()
            await asyncio.gather(rest, return_exceptions=True)


async def test_no_more_requests_are_held_than_the_bound() -> None:
    async with open_scene(held_max=1) as scene:
        scene.publish(make_route())
        scene.start_asking("/judge/")
        await wait_until(lambda: scene.proxy.room.count == 1)
        second = scene.start_asking("/judge/")
        await wait_until(lambda: second.done() or scene.proxy.room.count > 1)
        assert scene.proxy.room.count == 1
        assert (await second).status == 409
