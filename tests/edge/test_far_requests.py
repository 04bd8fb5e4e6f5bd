"""A replica of another node, asked through that node's gateway: what the direct way promises holds on this one too."""

import asyncio
import hashlib

import pytest
from aiohttp import web
from far_scenes import answer_with, open_nodes, publish_all, until
from gateway_scenes import DEADLINE_S, make_backend, make_route

from retinue.gateway.routes import STREAK

BIG = 10 * 1024 * 1024


async def test_a_service_sees_the_request_as_if_it_had_been_asked_directly() -> None:
    seen: list[tuple[str, str, dict[str, str], bytes]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        seen.append((request.method, request.raw_path, dict(request.headers), await request.read()))
        return web.Response(status=207, reason="Odd", text="yes", headers={"X-Served": "1"})

    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(handle)
        publish_all(nodes, replica)
        headers = "X-Retinue-Far-Replica: judge/9#9\r\nX-Custom: a\r\nAuthorization: Bearer own-key\r\n"
        answer = await near.scene.ask("/judge/v1/a%2Fb/../c?x=%20&y", "POST", headers, b"hello")
        assert (answer.status, answer.body, answer.headers["x-served"]) == (207, b"yes", "1")
        assert answer.raw_head.startswith(b"HTTP/1.1 207 Odd\r\n")
    ((method, path, headers_seen, body),) = seen
    assert (method, path, body) == ("POST", "/v1/a%2Fb/../c?x=%20&y", b"hello")
    assert headers_seen == {
        "Host": f"127.0.0.1:{replica.port}",
        "X-Custom": "a",
        "Authorization": "Bearer own-key",
        "X-Forwarded-Prefix": "/judge",
        "Content-Length": "5",
    }


async def test_requests_of_one_client_share_a_connection_to_the_other_node() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        publish_all(nodes, await far.open_replica(answer_with("ok")))
        for _ in range(20):
            assert (await near.scene.ask("/judge/", "POST", body=b"x")).body == b"ok"
        assert far.scene.proxy.counts.far == 20
        assert near.scene.proxy._far is not None
        pools = near.scene.proxy._far._session.connector._conns  # type: ignore[union-attr]
        assert [len(pool) for pool in pools.values()] == [1]


async def test_a_far_request_counts_once_for_the_run_and_on_the_replica_at_both_nodes() -> None:
    arrived, release = asyncio.Event(), asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.Response:
        arrived.set()
        await release.wait()
        return web.Response(text="ok")

    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        publish_all(nodes, await far.open_replica(handle))
        asked = near.scene.start_asking("/judge/")
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
        tables = [node.scene.proxy.table for node in nodes]
        assert [table.in_flight for table in tables] == [{"judge": 1}, {}]
        assert [table.services["judge"].slots[0].in_flight for table in tables] == [1, 1]
        release.set()
        assert (await asked).body == b"ok"
        await until(lambda: all(table.services["judge"].slots[0].in_flight == 0 for table in tables))
        assert [node.scene.proxy.counts.requests for node in nodes] == [1, 0]


async def test_far_and_near_replicas_take_turns_and_the_least_busy_is_asked() -> None:
    async with open_nodes("n1", "n2", "n3") as nodes:
        replicas = [await node.open_replica(answer_with(node.name), f"judge/{at}") for at, node in enumerate(nodes)]
        publish_all(nodes, *replicas)
        told = [(await nodes[0].scene.ask("/judge/")).body for _ in range(6)]
        assert told == [b"n1", b"n2", b"n3"] * 2


async def test_the_first_event_of_a_far_stream_arrives_before_the_replica_sends_the_second() -> None:
    first_was_read = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: one\n\n")
        await first_was_read.wait()
        await answer.write(b"data: two\n\n")
        await answer.write_eof()
        return answer

    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(handle))
        client = await nodes[0].scene.connect()
        await client.send(b"GET /judge/stream HTTP/1.1\r\nHost: g\r\n\r\n")
        assert (await client.read_head()).headers["content-type"] == "text/event-stream"
        assert await client.read_chunk() == b"data: one\n\n"
        first_was_read.set()
        assert await client.read_chunk() == b"data: two\n\n"
        assert await client.read_chunk() == b""


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_long_body_reaches_the_far_replica_while_the_client_still_sends_it(is_chunked: bool) -> None:
    begun = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.Response:
        digest = hashlib.sha256()
        async for part in request.content.iter_any():
            digest.update(part)
            begun.set()
        return web.Response(text=digest.hexdigest())

    body = bytes(range(256)) * (BIG // 256)
    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(handle))
        client = await nodes[0].scene.connect()
        length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {BIG}"
        await client.send(f"PUT /judge/ HTTP/1.1\r\nHost: g\r\n{length}\r\n\r\n".encode())
        half = BIG // 2
        frame = (lambda part: b"%x\r\n%b\r\n" % (len(part), part)) if is_chunked else (lambda part: part)
        await client.send(frame(body[:half]))
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        await client.send(frame(body[half:]) + (b"0\r\n\r\n" if is_chunked else b""))
        assert (await client.read_answer()).body.decode() == hashlib.sha256(body).hexdigest()


async def test_ten_megabytes_come_back_whole() -> None:
    body = bytes(range(256)) * (BIG // 256)

    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(body=body)

    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(handle))
        assert (await nodes[0].scene.ask("/judge/")).body == body


async def test_a_client_that_goes_away_ends_the_work_at_the_far_replica() -> None:
    arrived, cancelled = asyncio.Event(), asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.Response:
        arrived.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(handle))
        client = await nodes[0].scene.connect()
        await client.send(b"POST /judge/ HTTP/1.1\r\nHost: g\r\nContent-Length: 2\r\n\r\nhi")
        await asyncio.wait_for(arrived.wait(), DEADLINE_S)
        client.close()
        await asyncio.wait_for(cancelled.wait(), DEADLINE_S)
        tables = [node.scene.proxy.table for node in nodes]
        await until(lambda: all(table.services["judge"].slots[0].in_flight == 0 for table in tables))
        assert [table.dropped() for table in tables] == [(), ()]


async def test_a_client_that_goes_away_in_the_middle_of_a_far_stream_ends_it_too() -> None:
    closed = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await reader.read()
        closed.set()

    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        publish_all(nodes, make_backend(await far.scene.open_raw_backend(stream), node="n2"))
        client = await near.scene.connect()
        await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        await client.read_head()
        assert await client.read_chunk() == b"one"
        client.close()
        await asyncio.wait_for(closed.wait(), DEADLINE_S)


async def test_a_redirect_of_a_far_replica_to_itself_goes_through_the_stable_url() -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(status=307, headers={"Location": f"http://{request.headers['Host']}/v1/x?y"})

    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(handle))
        assert (await nodes[0].scene.ask("/judge/")).headers["location"] == "/judge/v1/x?y"


async def test_a_per_node_service_is_asked_on_the_own_node_and_elsewhere_while_that_one_is_away() -> None:
    async with open_nodes("n1", "n2") as nodes:
        own, other = [await node.open_replica(answer_with(node.name), f"judge/{at}") for at, node in enumerate(nodes)]
        publish_all(nodes, own, other, is_per_node=True)
        assert {(await nodes[0].scene.ask("/judge/")).body for _ in range(4)} == {b"n1"}
        nodes[0].scene.publish(make_route(other, is_per_node=True), peers=(nodes[1].peer(),))
        assert (await nodes[0].scene.ask("/judge/")).body == b"n2"


async def test_a_proxy_in_the_environment_changes_nothing_between_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:1")
    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(answer_with("ok")))
        assert (await nodes[0].scene.ask("/judge/")).body == b"ok"


async def test_a_far_replica_that_breaks_three_requests_in_a_row_is_left_out_at_both_nodes() -> None:
    async def break_off(request: web.BaseRequest) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(break_off))
        for _ in range(STREAK):
            answer = await nodes[0].scene.ask("/judge/", "POST", "X-Retinue-Retry: never\r\n", b"x")
            assert (answer.status, b"retinue_bad_gateway" in answer.body) == (409, True)
        assert [node.scene.proxy.table.dropped() for node in nodes] == [("judge/0",)] * 2
