"""The agent's word to its gateway, over the real socket."""

import asyncio
import os
import stat
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from gateway_scenes import DEADLINE_S, TOKEN, Scene, find_closed_port, make_backend, make_route, open_scene, wait_until

from retinue.channel.messages import GatewayFacts, Membership
from retinue.errors import PermanentError
from retinue.gateway.desk import bind_control
from retinue.gateway.link import GatewayLink


@asynccontextmanager
async def open_link(scene: Scene, node: str = "n1") -> AsyncIterator[tuple[GatewayLink, asyncio.Queue[GatewayFacts]]]:
    facts: asyncio.Queue[GatewayFacts] = asyncio.Queue()
    link = GatewayLink(scene.control_path, node, facts.put_nowait)
    task = asyncio.create_task(link.run())
    try:
        yield link, facts
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def membership(epoch: int, port: int, incarnation: int = 1) -> Membership:
    return Membership(epoch=epoch, routes=(make_route(make_backend(port, incarnation=incarnation)),))


def is_listed(scene: Scene, port: int) -> bool:
    service = scene.proxy.table.services.get("judge")
    return service is not None and [slot.backend.port for slot in service.slots] == [port]


async def test_what_was_published_before_the_gateway_was_there_arrives_when_it_is() -> None:
    async with open_scene() as scene, open_link(scene, "n7") as (link, _):
        link.publish(membership(4, 1111))
        await wait_until(lambda: is_listed(scene, 1111))
        assert (scene.proxy.table.epoch, scene.proxy.table.node) == (4, "n7")


async def test_a_stale_epoch_is_ignored_and_the_first_after_a_reconnect_is_not() -> None:
    async with open_scene() as scene:
        async with open_link(scene) as (link, _):
            link.publish(membership(9, 1111))
            await wait_until(lambda: is_listed(scene, 1111))
            link.publish(membership(8, 2222))
            link.publish(membership(9, 3333))
            link.publish(membership(10, 4444))
            await wait_until(lambda: is_listed(scene, 4444))
            assert scene.proxy.table.epoch == 10
        async with open_link(scene) as (link, _):
            link.publish(membership(1, 5555))
            await wait_until(lambda: is_listed(scene, 5555))
            assert scene.proxy.table.epoch == 1


async def test_stale_epochs_never_show_not_even_for_a_moment() -> None:
    async with open_scene() as scene, open_link(scene) as (link, _):
        link.publish(membership(9, 1111))
        await wait_until(lambda: is_listed(scene, 1111))
        seen: list[int] = []
        original = scene.proxy.room.wake
        scene.proxy.table._on_change = lambda name: (seen.append(scene.proxy.table.epoch or 0), original(name))
        link.publish(membership(8, 2222))
        link.publish(membership(10, 4444))
        await wait_until(lambda: is_listed(scene, 4444))
        assert seen == [10]


async def test_the_membership_stays_while_the_agent_is_away() -> None:
    async with open_scene() as scene:

        async def handle(request: web.BaseRequest) -> web.Response:
            return web.Response(text="ok")

        port = await scene.open_backend(handle)
        async with open_link(scene) as (link, _):
            link.publish(membership(1, port))
            await wait_until(lambda: is_listed(scene, port))
        await wait_until(lambda: scene.desk._writer is None)
        assert (await scene.ask("/judge/")).body == b"ok"


async def test_a_replica_that_the_agent_saw_exit_gets_no_request_until_it_is_published_anew() -> None:
    async with open_scene() as scene, open_link(scene) as (link, facts):

        async def handle(request: web.BaseRequest) -> web.Response:
            return web.Response(text="ok")

        port = await scene.open_backend(handle)
        link.publish(membership(1, port))
        await wait_until(lambda: is_listed(scene, port))
        link.drop("judge/0", 1, "exited 1")
        await wait_until(lambda: scene.proxy.table.dropped() == ("judge/0",))
        asked = scene.start_asking("/judge/")
        await wait_until(lambda: scene.proxy.room.count == 1)
        told = await asyncio.wait_for(facts.get(), DEADLINE_S)
        while told.held != 1:
            told = await asyncio.wait_for(facts.get(), DEADLINE_S)
        assert told.dropped == ("judge/0",)
        assert not asked.done()
        link.publish(membership(2, port))
        assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"ok"
        assert scene.proxy.table.dropped() == ()


async def test_a_drop_is_said_again_to_a_gateway_that_was_started_again() -> None:
    async with open_scene() as first, open_link(first) as (link, _):
        link.publish(membership(1, find_closed_port()))
        link.drop("judge/0", 1, "exited 1")
        await wait_until(lambda: first.proxy.table.dropped() == ("judge/0",))
        # The same link finds another gateway behind its path.
        async with open_scene() as second:
            os.rename(second.control_path, first.control_path)
            assert first.desk._writer is not None
            first.desk._writer.transport.abort()
            await wait_until(lambda: second.proxy.table.dropped() == ("judge/0",))


async def test_facts_are_told_when_they_changed_and_only_then() -> None:
    async with open_scene() as scene, open_link(scene) as (link, facts):
        link.publish(membership(1, 1))
        await wait_until(lambda: link._writer is not None and scene.desk._writer is not None)
        scene.desk.tell_now()
        scene.desk.tell_now()
        scene.proxy.counts.requests += 1
        scene.desk.tell_now()
        assert (await asyncio.wait_for(facts.get(), DEADLINE_S)).requests == 0
        assert (await asyncio.wait_for(facts.get(), DEADLINE_S)).requests == 1
        assert facts.empty()


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xff\xff\xff",
        struct.pack(">I", 3) + b"{}}",
        struct.pack(">I", 13) + b'{"m":"Other"}',
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_frame_that_is_not_one_closes_the_connection_and_changes_nothing(junk: bytes) -> None:
    async with open_scene() as scene:
        scene.publish(make_route())
        reader, writer = await asyncio.open_unix_connection(scene.control_path)
        writer.write(junk)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
        writer.close()
        assert (await scene.ask("/-/health")).status == 200
        assert list(scene.proxy.table.services) == ["judge"]


async def test_a_new_agent_replaces_the_one_before_it() -> None:
    async with open_scene() as scene:
        reader, writer = await asyncio.open_unix_connection(scene.control_path)
        await wait_until(lambda: scene.desk._writer is not None)
        async with open_link(scene) as (link, _):
            assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
            link.publish(membership(1, 1111))
            await wait_until(lambda: is_listed(scene, 1111))
        writer.close()


def test_the_control_socket_is_ours_alone_and_replaces_a_dead_ones(tmp_path: Path) -> None:
    path = tmp_path / "node" / "gateway.sock"
    bind_control(str(path)).close()
    with bind_control(str(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_control_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(PermanentError, match="0700"):
        bind_control(str(tmp_path / "open" / "gateway.sock"))


def test_a_file_where_the_control_socket_belongs_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir(mode=0o700)
    path = tmp_path / "node" / "gateway.sock"
    path.write_text(TOKEN)
    with pytest.raises(PermanentError, match="not a socket"):
        bind_control(str(path))
    assert path.read_text() == TOKEN
