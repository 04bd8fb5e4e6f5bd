"""Joining, talking, losing and coming back, over real TLS on loopback."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
from channel_scenes import (
    DEADLINE_S,
    NONCE,
    RUN,
    VERSION,
    Agent,
    Desk,
    bind_listener,
    build_join,
    joined,
    running,
    serving,
    until,
)

from retinue.channel.messages import Beat, EndNode, Hello, Membership, NodeNote, Observed, Refused, Route, Welcome
from retinue.terms.record import replace

WELCOME = Welcome(RUN, 0, 60.0)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_listener() as sock:
        yield sock


async def test_an_agent_joins_and_both_sides_talk(listener: socket.socket) -> None:
    desk = Desk()
    observed = (Observed("judge/0", 2, True, pid=7),)
    async with serving(listener, desk) as server:
        agent = Agent(build_join(listener), Hello("n1", VERSION, NONCE, observed=observed))
        async with running(agent):
            await until(lambda: agent.link.is_connected)
            assert agent.link.send(Beat(load_per_cpu=0.5))
            assert server.send("n1", EndNode("enough"))
            await until(lambda: desk.messages and len(agent.heard) == 2)
            assert desk.hellos[0].observed == observed
            assert desk.hosts == ["127.0.0.1"]
            assert desk.messages == [("n1", Beat(load_per_cpu=0.5))]
            assert agent.heard == [WELCOME, EndNode("enough")]
            assert agent.link.lost_since_s is None
            assert server.connected == ("n1",)
        await until(lambda: server.connected == ())
        assert not server.send("n1", EndNode("nobody"))
    assert desk.lost == []


async def test_what_is_sent_while_joining_follows_the_welcome(listener: socket.socket) -> None:
    desk = Desk()
    desk.on_hello = lambda connection, hello: connection.send(Membership(1, ())) and None  # type: ignore[func-returns-value]
    async with serving(listener, desk), joined(build_join(listener)) as agent:
        await until(lambda: len(agent.heard) == 2)
        assert agent.heard == [WELCOME, Membership(1, ())]


@pytest.mark.parametrize(
    ("hello", "word"),
    [
        (Hello("n1", "9.9.9", NONCE), "9.9.9"),
        (Hello("n1", VERSION, "another"), "--run-dir"),
        (Hello("n2", VERSION, NONCE), "certificate"),
    ],
)
async def test_an_agent_that_does_not_belong_is_told_why(listener: socket.socket, hello: Hello, word: str) -> None:
    desk = Desk()
    async with serving(listener, desk) as server:
        agent = Agent(build_join(listener), hello)
        async with asyncio.timeout(DEADLINE_S):
            refused = await agent.link.run()
        assert word in refused.reason
        assert agent.heard == [refused]
        assert server.connected == ()
    assert desk.hellos == []


async def test_a_refusal_by_the_controller_ends_the_link(listener: socket.socket) -> None:
    desk = Desk()
    desk.on_hello = lambda connection, hello: Refused("the run is over")
    async with serving(listener, desk):
        agent = Agent(build_join(listener))
        async with asyncio.timeout(DEADLINE_S):
            assert await agent.link.run() == Refused("the run is over")
        assert not agent.link.is_connected


async def test_a_second_connection_of_a_node_replaces_the_first(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk) as server, joined(build_join(listener)) as old:
        old_wire_dials = old.dials
        async with joined(build_join(listener)) as new:
            await until(lambda: False in old.changes, "the older one was closed")
            assert server.connected == ("n1",)
            assert old_wire_dials == 1
            # The newer one is replaced in turn when the older agent dials again: at any time it is one.
            await until(lambda: old.dials == 2 and old.link.is_connected)
            assert server.connected == ("n1",)
            assert len(new.heard) == 1
    assert desk.lost == []


async def test_agents_come_back_to_a_restarted_controller_on_the_same_socket(listener: socket.socket) -> None:
    first, second = Desk(), Desk()
    async with running(Agent(build_join(listener))) as agent:
        async with serving(listener, first):
            await until(lambda: agent.link.is_connected)
        await until(lambda: not agent.link.is_connected)
        assert agent.link.lost_since_s is not None
        assert not agent.link.send(Beat())
        async with serving(listener, second) as server:
            await until(lambda: agent.link.is_connected)
            assert len(second.hellos) == 1
            assert server.send("n1", EndNode("again"))
            await until(lambda: agent.heard[-1] == EndNode("again"))
        await until(lambda: not agent.link.is_connected)
    assert agent.changes == [True, False, True, False]


async def test_a_dead_address_is_passed_over(listener: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = closed.getsockname()
    join = replace(build_join(listener), addresses=(dead, listener.getsockname()))
    async with serving(listener, Desk()), joined(join) as agent:
        assert agent.dials == 1


async def test_a_proxy_in_the_environment_changes_nothing(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(listener, Desk()), joined(build_join(listener)) as agent:
        assert agent.heard == [WELCOME]


async def test_a_dropped_connection_is_lost_only_after_silence(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk, silence_limit_s=0.2) as server:
        async with joined(build_join(listener)):
            server.check_silence(0.0)
        await until(lambda: server.connected == ())
        assert desk.lost == []
        await until(lambda: server.check_silence(0.0) or desk.lost)
        assert desk.lost[0][0] == "n1"
        server.check_silence(0.0)
        assert len(desk.lost) == 1


async def test_a_connected_but_silent_node_is_lost_and_cut_off(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk, silence_limit_s=0.2) as server, joined(build_join(listener)) as agent:
        server.check_silence(5.0)
        await until(lambda: server.check_silence(0.0) or desk.lost)
        await until(lambda: False in agent.changes)


async def test_a_node_expected_after_a_restart_is_lost_when_it_never_comes(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk, silence_limit_s=0.1) as server:
        server.expect("n1")
        server.expect("n2")
        server.forget("n2")
        await until(lambda: server.check_silence(0.0) or desk.lost)
        assert [node for node, _ in desk.lost] == ["n1"]


async def test_a_peer_that_does_not_drain_is_cut_off_and_nobody_waits(listener: socket.socket) -> None:
    desk = Desk()
    big = Membership(1, tuple(Route(f"s{index}", (), cause="x" * 1000) for index in range(4000)))
    async with serving(listener, desk) as server, joined(build_join(listener)) as agent:
        wire = agent.link._wire
        assert wire is not None
        assert wire._transport is not None
        wire._transport.pause_reading()
        sent = 0
        while server.send("n1", big):
            sent += 1
            assert sent < 100
        # 16 MiB of ours and what the kernel takes; then the node is gone, and comes back by itself.
        assert sent >= 2
        await until(lambda: server.connected == ())
        wire._transport.resume_reading()
        await until(lambda: agent.dials == 2 and agent.link.is_connected)
    assert desk.lost == []


async def test_queued_words_are_delivered_before_a_close(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk), joined(build_join(listener)) as agent:
        for index in range(200):
            assert agent.link.send(NodeNote(str(index), "x" * 5000))
        await agent.link.close("done")
        await until(lambda: len(desk.messages) == 200)


async def test_a_herd_of_nodes_that_come_at_once_all_get_in(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk) as server, contextlib.AsyncExitStack() as stack:
        agents = [Agent(build_join(listener, f"m{number}")) for number in range(120)]
        for agent in agents:
            await stack.enter_async_context(running(agent))
        await until(lambda: len(server.connected) == 120)
        assert all(agent.dials == 1 for agent in agents)
