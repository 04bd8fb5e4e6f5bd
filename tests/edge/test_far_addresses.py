"""Several addresses of one node: which is used, which are passed by, and what is said when none leads there."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from far_scenes import FarNode, answer_with, build_hop, listen_at, open_nodes, publish_all, until
from gateway_scenes import DEADLINE_S, make_route, open_scene

from retinue.channel.messages import Backend, Peer
from retinue.gateway.peers import Peers

REFUSED = "127.0.2.9"
"""Nothing listens there."""


@contextmanager
def swallow(address: str, port: int) -> Iterator[None]:
    """Let connects to this address hang, as behind a firewall that drops: a full queue that nobody serves."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind((address, port))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((address, port))
        yield


@contextmanager
def keep_silent(address: str, port: int) -> Iterator[None]:
    """Take connections at this address and never say a word."""
    with listen_at(address, port):
        yield


def publish_to(near: FarNode, far: FarNode, replica: Backend, *addresses: str) -> None:
    far.scene.publish(make_route(replica))
    near.scene.publish(make_route(replica), peers=(far.peer(*addresses),))


def find_pinned(node: FarNode, name: str) -> str:
    assert node.scene.proxy._far is not None
    return node.scene.proxy._far.peers._places[name].pinned


@pytest.mark.parametrize("block", [swallow, keep_silent])
async def test_a_first_address_that_leads_nowhere_is_pinned_around_once(block: object) -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        with block("127.0.2.1", far.hop_port):  # type: ignore[operator]
            publish_to(near, far, await far.open_replica(answer_with("ok")), "127.0.2.1", REFUSED, far.address)
            assert (await near.scene.ask("/judge/")).body == b"ok"
            assert find_pinned(near, "n2") == far.address
            assert near.scene.proxy.counts.retried == 0
            assert (await near.scene.ask("/judge/")).body == b"ok"


async def test_an_address_where_another_node_answers_is_passed_by() -> None:
    """The bridge of a container engine has the same address on every host."""
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(answer_with("ok"))
        with listen_at("127.0.2.2", far.hop_port) as listen:
            async with open_scene(hop=build_hop("n3", listen)) as other:
                publish_to(near, far, replica, "127.0.2.2", far.address)
                assert (await near.scene.ask("/judge/")).body == b"ok"
                assert find_pinned(near, "n2") == far.address
                assert other.proxy.counts.far == 0


async def test_when_the_pinned_address_dies_the_same_request_goes_by_the_other_one() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(answer_with("ok"))
        second = listen_at("127.0.2.3", far.hop_port)
        async with open_scene(hop=build_hop("n2", second)) as twin:
            twin.publish(make_route(replica))
            publish_to(near, far, replica, "127.0.2.3", far.address)
            assert (await near.scene.ask("/judge/")).body == b"ok"
            assert find_pinned(near, "n2") == "127.0.2.3"
        second.close()
        assert (await near.scene.ask("/judge/", "POST", body=b"x" * 2_000_000)).body == b"ok"
        assert find_pinned(near, "n2") == far.address
        assert near.scene.proxy.counts.retried == 0


async def test_a_node_that_cannot_be_reached_is_named_with_every_address_and_costs_once() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replicas = [await far.open_replica(answer_with("ok"), f"judge/{at}") for at in range(3)]
        near.scene.publish(make_route(*replicas, hold_s=0.05), peers=(far.peer(REFUSED, "127.0.2.8"),))
        answer = await near.scene.ask("/judge/", headers="X-Retinue-Retry: never\r\n")
        assert answer.status == 409
        said = answer.body.decode()
        assert "cannot reach the gateway of node n2: tried 127.0.2.9: connection refused" in said
        assert "127.0.2.8: connection refused" in said
        assert near.scene.proxy._far is not None
        place = near.scene.proxy._far.peers._places["n2"]
        searched = place.down_until_s
        held = await near.scene.ask("/judge/")
        assert (held.status, held.body.decode().count("judge/")) == (409, 3)
        assert place.down_until_s == searched, "the other replicas of the node did not search again"


async def test_a_node_that_was_away_is_found_again() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(answer_with("ok"))
        publish_to(near, far, replica, "127.0.2.4")
        asked = near.scene.start_asking("/judge/")
        await until(lambda: near.scene.proxy.table.dropped() == ("judge/0",))
        with listen_at("127.0.2.4", far.hop_port) as listen:
            async with open_scene(hop=build_hop("n2", listen)) as twin:
                twin.publish(make_route(replica))
                assert (await asyncio.wait_for(asked, DEADLINE_S)).body == b"ok"


async def test_a_node_whose_gateway_nobody_named_is_said_to_be_that_and_no_stranger_is_asked() -> None:
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        near.scene.publish(make_route(await far.open_replica(answer_with("never"))))
        answer = await near.scene.ask("/judge/", headers="X-Retinue-Retry: never\r\n")
        assert b"cannot reach node n2: nobody has said where its gateway is" in answer.body


async def test_what_is_known_of_a_node_outlives_a_membership_that_does_not_say_it() -> None:
    """A controller that was started again tells of the replicas before all agents are back."""
    async with open_nodes("n1", "n2") as nodes:
        near, far = nodes
        replica = await far.open_replica(answer_with("ok"))
        publish_all(nodes, replica)
        near.scene.publish(make_route(replica))
        assert (await near.scene.ask("/judge/")).body == b"ok"
        near.scene.publish(make_route())
        assert near.scene.proxy.table.peers == {}


async def test_requests_that_come_at_once_search_once_and_one_that_leaves_ends_it_for_nobody() -> None:
    asked: list[str] = []
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask(peer: Peer, address: str) -> str:
        asked.append(address)
        return await answered

    peers = Peers(lambda: {"n2": Peer("n2", ("10.0.0.1",), 1)}, ask)
    waiting = [asyncio.create_task(peers.find("n2")) for _ in range(5)]
    await until(lambda: bool(asked))
    waiting.pop().cancel()
    answered.set_result("")
    assert [(await task)[1] for task in waiting] == ["10.0.0.1"] * 4
    assert asked == ["10.0.0.1"]
    await peers.close()


async def test_the_one_that_failed_is_tried_last_and_the_order_is_else_kept() -> None:
    asked: list[str] = []

    async def ask(peer: Peer, address: str) -> str:
        asked.append(address)
        return "" if len(asked) in (1, 4) else "no"

    peers = Peers(lambda: {"n2": Peer("n2", ("a", "b", "c"), 1)}, ask)
    assert (await peers.find("n2"))[1] == "a"
    peers.doubt("n2", "b")
    assert (await peers.find("n2"))[1] == "a"
    peers.doubt("n2", "a")
    assert (await peers.find("n2"))[1] == "a"
    assert asked == ["a", "b", "c", "a"]
    await peers.close()
