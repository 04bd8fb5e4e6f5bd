"""Two things a gateway must not believe: that every caller is its owner, and the site's proxy."""

import asyncio
import os

import pytest
from aiohttp import web
from gateway_scenes import TOKEN, make_backend, make_route, open_scene


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
