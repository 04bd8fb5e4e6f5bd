"""Sandboxes of other nodes: over the hop to the one replica, and what is said when node, gateway or replica is away."""

import json

from far_scenes import FarNode, open_nodes
from gateway_sandbox_scenes import (
    build_create,
    make_sandbox_route,
    name_sandbox,
    open_host,
    say_capacity,
)
from gateway_scenes import Answer, find_closed_port, make_backend

from retinue.channel.messages import Peer, Route
from retinue.terms.record import replace


def publish(nodes: list[FarNode], route: Route, *more: Peer) -> None:
    for node in nodes:
        peers = tuple(other.peer() for other in nodes if other is not node)
        node.scene.publish(route, peers=(*peers, *more))


async def ask(node: FarNode, index: int, rest: str = "") -> Answer:
    return await node.scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(index)}{rest}", "POST", body=b"{}")


async def test_a_sandbox_of_another_node_is_reached_ready_or_not() -> None:
    async with open_nodes("n1", "n2") as nodes:
        here, there = await open_host(nodes[0].scene, 0), await open_host(nodes[1].scene, 1, node="n2")
        assert there.backend is not None
        publish(nodes, make_sandbox_route(here, there))
        assert (await ask(nodes[0], 1, "/exec")).body == b"sandbox/1"
        assert (await ask(nodes[1], 0, "/exec")).body == b"sandbox/0"
        publish(nodes, make_sandbox_route(here, unready=(there.backend,)))
        nodes[1].scene.proxy.table.drop("sandbox/1", 1, "lost readiness")
        assert (await ask(nodes[0], 1, "/exec")).body == b"sandbox/1"


async def test_a_host_that_died_on_another_node_is_410_with_that_node() -> None:
    async with open_nodes("n1", "n2") as nodes:
        dead = make_backend(find_closed_port(), "sandbox/1", node="n2")
        publish(nodes, make_sandbox_route(dead))
        answer = await ask(nodes[0], 1, "/exec")
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["type"], error["node"]) == (410, "infra_failed", "n2")
        assert "connection refused" in error["cause"]


async def test_a_host_that_was_started_again_there_is_410_though_this_gateway_has_not_heard_of_it() -> None:
    async with open_nodes("n1", "n2") as nodes:
        there = await open_host(nodes[1].scene, 1, node="n2")
        assert there.backend is not None
        publish(nodes[:1], make_sandbox_route(there), nodes[1].peer())
        publish(nodes[1:], make_sandbox_route(replace(there.backend, incarnation=2)))
        answer = await ask(nodes[0], 1)
        assert (answer.status, json.loads(answer.body)["error"]["type"]) == (410, "infra_failed")
        assert not there.asked


async def test_a_gateway_that_cannot_be_reached_for_a_moment_is_no_lost_sandbox() -> None:
    async with open_nodes("n1") as nodes:
        far = make_backend(1, "sandbox/1", node="n2")
        nodes[0].scene.publish(make_sandbox_route(far), peers=(Peer("n2", ("127.0.1.9",), find_closed_port()),))
        answer = await ask(nodes[0], 1, "/exec")
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["type"]) == (409, "retinue_bad_gateway")
        assert answer.headers["x-retinue-outcome"] == "infra_failed"


async def test_room_on_another_node_is_asked_for_over_the_hop_and_the_own_node_wins_a_tie() -> None:
    async with open_nodes("n1", "n2") as nodes:
        here = await open_host(nodes[0].scene, 0, capacity=say_capacity(50))
        there = await open_host(nodes[1].scene, 1, node="n2", capacity=say_capacity(50))
        publish(nodes, make_sandbox_route(here, there))
        assert await create(nodes[0]) == here.name
        assert await create(nodes[1]) == there.name
        here.capacity = say_capacity(99)
        for node in nodes:
            node.scene.proxy.chooser._placing._words.clear()
            assert await create(node) == there.name


async def create(node: FarNode) -> str:
    answer = await node.scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create())
    assert answer.status == 200
    return answer.body.decode()
