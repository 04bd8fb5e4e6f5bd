"""What flows while it flows: answers and bodies that are never gathered first."""

import asyncio

from aiohttp import web
from gateway_scenes import DEADLINE_S, make_backend, make_route, open_scene, wait_until


async def test_the_first_event_of_a_stream_arrives_before_the_backend_sends_the_second() -> None:
    async with open_scene() as scene:
        first_was_read = asyncio.Event()

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
            await answer.write(b"data: one\n\n")
            await first_was_read.wait()
            await answer.write(b"data: two\n\n")
            await answer.write_eof()
            return answer

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        client = await scene.connect()
        await client.send(b"GET /judge/stream HTTP/1.1\r\nHost: g\r\nAccept-Encoding: gzip\r\n\r\n")
        head = await client.read_head()
        assert head.headers["content-type"] == "text/event-stream"
        assert "content-encoding" not in head.headers
        assert await client.read_chunk() == b"data: one\n\n"
        first_was_read.set()
        assert await client.read_chunk() == b"data: two\n\n"
        assert await client.read_chunk() == b""


async def test_the_head_of_an_answer_arrives_before_its_body_begins() -> None:
    async with open_scene() as scene:
        head_was_read = asyncio.Event()

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            answer = web.StreamResponse()
            await answer.prepare(request)
            await head_was_read.wait()
            return answer

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        client = await scene.connect()
        await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        assert (await client.read_head()).status == 200
        head_was_read.set()
        assert await client.read_chunk() == b""


async def test_a_client_that_goes_away_ends_the_work_at_the_backend() -> None:
    async with open_scene() as scene:
        arrived, cancelled = asyncio.Event(), asyncio.Event()

        async def handle(request: web.BaseRequest) -> web.Response:
            arrived.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.set()
                raise
            raise AssertionError

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        client = await scene.connect()
        await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\nhi")
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
        client.close()
        await asyncio.wait_for(cancelled.wait(), DEADLINE_S)
        await wait_until(lambda: scene.proxy.table.in_flight == {})
        assert scene.proxy.table.dropped() == ()
        assert scene.proxy.counts.retried == 0


async def test_a_client_that_goes_away_in_the_middle_of_an_answer_ends_it_too() -> None:
    async with open_scene() as scene:
        closed = asyncio.Event()

        async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
            await reader.read()
            closed.set()

        scene.publish(make_route(make_backend(await scene.open_raw_backend(stream))))
        client = await scene.connect()
        await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        await client.read_head()
        assert await client.read_chunk() == b"one"
        client.close()
        await asyncio.wait_for(closed.wait(), DEADLINE_S)
        await wait_until(lambda: scene.proxy.table.in_flight == {})
        assert scene.proxy.counts.failed == 0


async def test_a_long_body_reaches_the_backend_while_the_client_still_sends_it() -> None:
    async with open_scene() as scene:
        begun = asyncio.Event()
        total = 0

        async def handle(request: web.BaseRequest) -> web.Response:
            nonlocal total
            async for part in request.content.iter_any():
                total += len(part)
                begun.set()
            return web.Response(text=f"{total} {request.headers['Content-Length']}")

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        client = await scene.connect()
        await client.send(b"PUT /judge/ HTTP/1.1\r\nHost: g\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1000)
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        assert scene.proxy.budget.used_bytes == 0
        await client.send(b"x" * 1_999_000)
        assert (await client.read_answer()).body == b"2000000 2000000"


async def test_a_chunked_body_arrives_whole_whatever_its_length() -> None:
    async with open_scene() as scene:

        async def handle(request: web.BaseRequest) -> web.Response:
            parts = [part async for part in request.content.iter_any()]
            return web.Response(text=f"{len(b''.join(parts))} {b''.join(parts)[:3].decode()}")

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        for count in (0, 1, 40, 400):
            client = await scene.connect()
            await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(count):
                await client.send(b"1388\r\n" + b"abcde" * 1000 + b"\r\n")
            await client.send(b"0\r\n\r\n")
            assert (await client.read_answer()).body == f"{count * 5000} {'abc' if count else ''}".encode()
        assert scene.proxy.budget.used_bytes == 0


async def test_a_client_that_waits_to_be_told_to_continue_is_told_and_not_the_backend() -> None:
    async with open_scene() as scene:

        async def handle(request: web.BaseRequest) -> web.Response:
            assert "Expect" not in request.headers
            return web.Response(body=await request.read())

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        client = await scene.connect()
        await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert (await client.read_head()).status == 100
        await client.send(b"body")
        answer = await client.read_answer()
        assert (answer.status, answer.body) == (200, b"body")


async def test_a_refused_client_that_waits_to_continue_is_not_told_to() -> None:
    async with open_scene(own_uid=None) as scene:
        scene.publish(make_route())
        client = await scene.connect()
        await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert (await client.read_head()).status == 403
