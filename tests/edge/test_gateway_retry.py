"""Backends that fail a request, and what the client sees of it."""

import asyncio
import json
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import pytest
from aiohttp import web
from gateway_scenes import DEADLINE_S, Scene, find_closed_port, make_backend, make_route, open_scene, wait_until

from retinue.gateway.proxy import SENDS_MAX


async def answer_ok(request: web.BaseRequest) -> web.Response:
    return web.Response(body=b"ok " + await request.read())


async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the request, then close without a byte."""
    await reader.readuntil(b"\r\n\r\n")


def serve_and_hang(pipe: Connection) -> None:
    """Child process: take requests, never answer, say when one arrived."""

    async def handle(request: web.BaseRequest) -> web.Response:
        await request.read()
        pipe.send("arrived")
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def serve() -> None:
        runner = web.ServerRunner(web.Server(handle, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        pipe.send(runner.addresses[0][1])
        await asyncio.get_running_loop().create_future()

    asyncio.run(serve())


async def test_a_backend_killed_with_requests_in_flight_loses_none_of_them() -> None:
    async with open_scene() as scene:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        child = context.Process(target=serve_and_hang, args=(theirs,))
        child.start()
        try:
            doomed = await asyncio.to_thread(ours.recv)
            scene.publish(make_route(make_backend(doomed)))
            asked = [scene.start_asking("/judge/", "POST", body=b"%d" % at) for at in range(10)]
            for _ in asked:
                assert await asyncio.to_thread(ours.poll, DEADLINE_S)
                assert ours.recv() == "arrived"
            good = await scene.open_backend(answer_ok)
            scene.publish(make_route(make_backend(doomed), make_backend(good, "judge/1")))
            os.kill(child.pid or 0, signal.SIGKILL)
            answers = await asyncio.wait_for(asyncio.gather(*asked), DEADLINE_S)
        finally:
            child.kill()
            child.join()
            child.close()
        assert [(answer.status, answer.body) for answer in answers] == [(200, b"ok %d" % at) for at in range(10)]
        assert scene.proxy.table.dropped() == ("judge/0",)


async def test_a_refused_connect_goes_to_another_replica_and_the_refusing_one_is_left_out() -> None:
    async with open_scene() as scene:
        good = await scene.open_backend(answer_ok)
        scene.publish(make_route(make_backend(find_closed_port()), make_backend(good, "judge/1")))
        for _ in range(4):
            assert (await scene.ask("/judge/", "POST", body=b"hi")).body == b"ok hi"
        assert scene.proxy.table.dropped() == ("judge/0",)
        assert scene.proxy.counts.retried == 1


async def test_with_only_a_refusing_replica_the_request_waits_for_its_next_incarnation() -> None:
    async with open_scene() as scene:
        scene.publish(make_route(make_backend(find_closed_port())))
        asked = scene.start_asking("/judge/", "POST", body=b"hi")
        await wait_until(lambda: scene.proxy.room.count == 1)
        scene.publish(make_route(make_backend(await scene.open_backend(answer_ok), incarnation=2)))
        assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"ok hi"


async def test_three_failures_in_a_row_leave_a_replica_out_and_the_other_answers() -> None:
    async with open_scene() as scene:
        bad = await scene.open_raw_backend(break_off)
        good = await scene.open_backend(answer_ok)
        scene.publish(make_route(make_backend(bad), make_backend(good, "judge/1")))
        for _ in range(8):
            assert (await scene.ask("/judge/")).status == 200
        assert scene.proxy.table.dropped() == ("judge/0",)
        assert scene.proxy.counts.retried == 3


async def test_a_request_that_breaks_every_replica_is_not_given_to_all_of_them() -> None:
    async with open_scene() as scene:
        port = await scene.open_raw_backend(break_off)
        replicas = [make_backend(port, f"judge/{at}") for at in range(SENDS_MAX + 3)]
        scene.publish(make_route(*replicas))
        answer = await scene.ask("/judge/")
        assert (answer.status, json.loads(answer.body)["error"]["type"]) == (409, "retinue_bad_gateway")
        assert scene.proxy.counts.retried == SENDS_MAX - 1


async def ask_where_it_breaks(scene: Scene, headers: str, body: bytes) -> tuple[int, str | None]:
    bad = await scene.open_raw_backend(break_off)
    scene.publish(make_route(make_backend(bad)))
    answer = await scene.ask("/judge/", "POST", headers, body)
    assert scene.proxy.counts.retried == 0
    return answer.status, answer.headers.get("x-retinue-outcome")


async def test_a_client_that_wants_no_retry_gets_the_failure() -> None:
    async with open_scene() as scene:
        assert await ask_where_it_breaks(scene, "X-Retinue-Retry: never\r\n", b"once") == (409, "infra_failed")


async def test_a_body_too_long_to_keep_is_never_sent_twice() -> None:
    async with open_scene() as scene:
        assert await ask_where_it_breaks(scene, "", b"x" * (1024 * 1024 + 1)) == (409, "infra_failed")


async def test_a_long_body_whose_connect_was_refused_is_whole_for_the_next_replica() -> None:
    async with open_scene() as scene:

        async def count(request: web.BaseRequest) -> web.Response:
            return web.Response(text=str(sum([len(part) async for part in request.content.iter_any()])))

        good = await scene.open_backend(count)
        scene.publish(make_route(make_backend(find_closed_port()), make_backend(good, "judge/1")))
        answer = await scene.ask("/judge/", "POST", body=b"x" * 3_000_000)
        assert answer.body == b"3000000"


async def test_an_answer_that_is_not_http_is_not_asked_for_again() -> None:
    async with open_scene() as scene:
        asked: list[bytes] = []

        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"NOT HTTP AT ALL\r\n\r\n")
            await writer.drain()

        scene.publish(make_route(make_backend(await scene.open_raw_backend(babble))))
        assert (await scene.ask("/judge/")).status == 409
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("version", "head"),
    [
        ("1.1", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
        ("1.1", b"Content-Length: 50\r\n\r\nhello"),
        ("1.0", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
    ],
)
async def test_an_answer_that_breaks_midway_never_looks_complete(version: str, head: bytes) -> None:
    async with open_scene() as scene:
        go_on = asyncio.Event()

        async def break_midway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + head)
            await go_on.wait()

        scene.publish(make_route(make_backend(await scene.open_raw_backend(break_midway))))
        client = await scene.connect()
        await client.send(f"GET /judge/ HTTP/{version}\r\nHost: g\r\n\r\n".encode())
        assert (await client.read_head()).status == 200
        async with asyncio.timeout(DEADLINE_S):
            seen = await client.reader.readuntil(b"hello")
            go_on.set()
            with pytest.raises(ConnectionResetError):
                seen += await client.reader.read()
        assert b"0\r\n\r\n" not in seen
        assert scene.proxy.counts.retried == 0


async def test_a_clients_own_broken_body_is_not_counted_against_the_replica() -> None:
    async with open_scene() as scene:
        scene.publish(make_route(make_backend(await scene.open_backend(answer_ok))))
        for _ in range(4):
            client = await scene.connect()
            await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
            assert (await client.read_head()).status == 400
        assert scene.proxy.table.dropped() == ()


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_not_counted_against_the_replica() -> None:
    async with open_scene() as scene:
        arrived: asyncio.Queue[None] = asyncio.Queue()

        async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            arrived.put_nowait(None)
            await reader.read()

        scene.publish(make_route(make_backend(await scene.open_raw_backend(swallow))))
        for _ in range(4):
            client = await scene.connect()
            await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 9000)
            await asyncio.wait_for(arrived.get(), DEADLINE_S)
            client.close()
            await wait_until(lambda: scene.proxy.table.in_flight == {})
        assert scene.proxy.table.dropped() == ()
        assert (scene.proxy.counts.failed, scene.proxy.counts.retried) == (0, 0)


async def test_not_even_an_idempotent_request_is_sent_twice_behind_our_back() -> None:
    async with open_scene() as scene:
        asked = 0

        async def break_and_count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            await reader.readuntil(b"\r\n\r\n")
            asked += 1

        scene.publish(make_route(make_backend(await scene.open_raw_backend(break_and_count))))
        assert (await scene.ask("/judge/", headers="X-Retinue-Retry: never\r\n")).status == 409
        assert asked == 1


async def test_a_request_that_failed_on_the_own_node_goes_to_another_though_the_own_is_preferred() -> None:
    async with open_scene() as scene:
        scene.proxy.table.node = "n1"
        bad = await scene.open_raw_backend(break_off)
        good = await scene.open_backend(answer_ok)
        replicas = make_backend(bad, "judge/0", node="n1"), make_backend(good, "judge/1", node="n2")
        scene.publish(make_route(*replicas, is_per_node=True))
        assert (await scene.ask("/judge/")).status == 200
        assert scene.proxy.counts.retried == 1
