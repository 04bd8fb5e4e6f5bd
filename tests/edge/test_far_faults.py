"""What goes wrong on the way to a replica of another node, and who is told what."""

import asyncio

import pytest
from aiohttp import web
from far_scenes import answer_with, count_body, open_nodes, publish_all, until
from gateway_scenes import DEADLINE_S, find_closed_port, make_backend, make_route

from retinue.channel.messages import Peer
from retinue.gateway.wire import FAR_FAULT

LONG = b"x" * (2 * 1024 * 1024)
"""Longer than what is kept for sending again."""


async def read_length(request: web.BaseRequest) -> web.Response:
    return web.Response(text=str(await count_body(request)))


async def break_off(request: web.BaseRequest) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def test_a_long_body_that_a_far_replica_never_took_goes_whole_to_another_one() -> None:
    """It is streamed and not kept: it must not leave the first gateway before a replica takes it."""
    async with open_nodes("n1", "n2", "n3") as nodes:
        dead = make_backend(find_closed_port(), "judge/0", node="n2")
        publish_all(nodes, dead, await nodes[2].open_replica(read_length, "judge/1"))
        answer = await nodes[0].scene.ask("/judge/", "POST", body=LONG)
        assert (answer.status, answer.body) == (200, str(len(LONG)).encode())
        assert nodes[0].scene.proxy.counts.retried == 1
        assert nodes[0].scene.proxy.table.dropped() == ("judge/0",)


async def test_a_connection_that_was_refused_a_long_body_is_not_used_again() -> None:
    async with open_nodes("n1", "n2") as nodes:
        dead = make_backend(find_closed_port(), "judge/0", node="n2")
        alive = await nodes[1].open_replica(read_length, "judge/1")
        publish_all(nodes, dead, alive)
        answers = [await nodes[0].scene.ask("/judge/", "POST", body=LONG) for _ in range(3)]
        answers += [await nodes[0].scene.ask("/judge/", "POST", body=b"xy") for _ in range(3)]
        assert [answer.body for answer in answers] == [str(len(LONG)).encode()] * 3 + [b"2"] * 3


async def test_a_short_request_that_broke_a_far_replica_is_sent_to_another_one() -> None:
    async with open_nodes("n1", "n2", "n3") as nodes:
        replicas = [
            await nodes[1].open_replica(break_off, "judge/0"),
            await nodes[2].open_replica(read_length, "judge/1"),
        ]
        publish_all(nodes, *replicas)
        assert (await nodes[0].scene.ask("/judge/", "POST", body=b"abc")).body == b"3"
        assert nodes[0].scene.proxy.counts.retried == 1


async def test_nothing_is_sent_again_once_a_byte_of_a_far_answer_reached_the_client() -> None:
    asked = 0

    async def break_midway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegun")
        await writer.drain()
        await until(lambda: was_read.is_set())

    was_read = asyncio.Event()
    async with open_nodes("n1", "n2") as nodes:
        port = await nodes[1].scene.open_raw_backend(break_midway)
        publish_all(nodes, make_backend(port, node="n2"))
        client = await nodes[0].scene.connect()
        await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        assert (await client.read_head()).status == 200
        assert await client.reader.readexactly(5) == b"begun"
        was_read.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(client.reader.readexactly(95), DEADLINE_S)
        assert asked == 1
        assert nodes[0].scene.proxy.counts.failed == 1


async def test_an_answer_without_a_length_that_breaks_off_does_not_look_complete() -> None:
    async def break_midway(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await writer.drain()
        await until(lambda: was_read.is_set())

    was_read = asyncio.Event()
    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, make_backend(await nodes[1].scene.open_raw_backend(break_midway), node="n2"))
        client = await nodes[0].scene.connect()
        await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
        await client.read_head()
        assert await client.read_chunk() == b"one"
        was_read.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.read_chunk()


async def test_an_incarnation_that_is_gone_is_left_out_and_the_other_replica_answers() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        newer = await far.open_replica(answer_with("newer"), "judge/0", incarnation=4)
        other = await far.open_replica(answer_with("other"), "judge/1")
        far.scene.publish(make_route(newer, other))
        older = make_backend(newer.port, "judge/0", incarnation=3, node="n2")
        near.scene.publish(make_route(older, other), peers=(far.peer(),))
        assert {(await near.scene.ask("/judge/", "POST", body=LONG)).body for _ in range(3)} == {b"other"}
        slot = next(s for s in near.scene.proxy.table.services["judge"].slots if s.backend == older)
        assert slot.cause == "on its node n2 runs #4 by now"


async def test_a_replica_that_its_own_gateway_hears_of_a_moment_later_is_waited_for() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(answer_with("ok"), incarnation=2)
        near.scene.publish(make_route(replica), peers=(far.peer(),))
        asked = near.scene.start_asking("/judge/")
        await until(lambda: far.scene.proxy.room.count == 1)
        far.scene.publish(make_route(replica))
        assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"ok"
        assert near.scene.proxy.counts.retried == 0


async def test_a_replica_that_is_in_no_route_of_its_own_node_can_be_asked_for_from_elsewhere() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(answer_with("ok"))
        far.scene.publish(make_route(), hidden=(replica,))
        near.scene.publish(make_route(replica), peers=(far.peer(),))
        assert (await near.scene.ask("/judge/")).body == b"ok"
        assert far.scene.proxy.table.drop("judge/0", 1, "it exited")
        refused = await near.scene.ask("/judge/", headers="X-Retinue-Retry: never\r\n")
        assert b"it exited" in refused.body


async def test_a_request_from_far_does_not_go_far_again() -> None:
    async with open_nodes("n1", "n2", "n3") as nodes:
        near, middle, far = nodes
        replica = await far.open_replica(answer_with("never"))
        publish_all(nodes, replica)
        # n1 is told that n3's gateway is where n2's is; the certificate is what tells them apart.
        near.scene.publish(make_route(replica), peers=(Peer("n3", (middle.address,), middle.hop_port),))
        answer = await near.scene.ask("/judge/", headers="X-Retinue-Retry: never\r\n")
        assert (answer.status, far.scene.proxy.counts.far, middle.scene.proxy.counts.far) == (409, 0, 0)
        # And asked by name, n2 has no such replica of its own.
        moved = make_backend(replica.port, "judge/0", node="n2")
        near.scene.publish(make_route(moved), peers=(middle.peer(),))
        answer = await near.scene.ask("/judge/", headers="X-Retinue-Retry: never\r\n")
        assert b"its node n2 does not list it" in answer.body
        assert far.scene.proxy.counts.far == 0


async def test_a_service_cannot_speak_as_a_gateway() -> None:
    async def forge(request: web.BaseRequest) -> web.Response:
        return web.Response(status=502, headers={FAR_FAULT: "ours it says so"}, text="mine")

    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes, await nodes[1].open_replica(forge))
        for node in nodes:
            answer = await node.scene.ask("/judge/")
            assert (answer.status, answer.body) == (502, b"mine")
            assert FAR_FAULT.lower() not in answer.headers


async def test_a_request_is_held_until_a_far_replica_is_published() -> None:
    async with open_nodes("n1", "n2") as nodes:
        publish_all(nodes)
        asked = nodes[0].scene.start_asking("/judge/")
        await until(lambda: nodes[0].scene.proxy.room.count == 1)
        publish_all(nodes, await nodes[1].open_replica(answer_with("ok")))
        assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"ok"


async def test_a_short_of_descriptors_far_gateway_is_not_the_replicas_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        publish_all(nodes, await far.open_replica(answer_with("ok")))

        async def lack(*args: object, **words: object) -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(far.scene.proxy._direct, "send", lack)
        answer = await near.scene.ask("/judge/")
        assert (answer.status, b"on the gateway's side" in answer.body) == (409, True)
        assert near.scene.proxy.table.dropped() == far.scene.proxy.table.dropped() == ()
