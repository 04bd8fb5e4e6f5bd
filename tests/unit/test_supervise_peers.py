"""Which gateways a gateway is told of, and what becomes of that when agents and controllers come and go."""

from typing import Any

import pytest

from retinue.channel.messages import Backend, FromController, GatewayBound, Hello, Membership, Peer
from retinue.plan.records import Plan
from retinue.supervise.fleet import Seat
from retinue.supervise.happenings import AgentJoined, AgentSaid, NodeGone
from retinue.supervise.nodes import ADDRESSES_MAX, Nodes
from retinue.supervise.routes import FEWEST_TOLD, RouteBook
from retinue.supervise.state import RunPhase
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import replace
from retinue.terms.replica import Phase
from support.world import World, build_test_plan, service

MANY = tuple(f"n{index}" for index in range(800))


class PeerWorld(World):
    """Keeps what each gateway was told last; every node has an address and, once it is bound, a hop port."""

    def __init__(self, plan: Plan, **fields: Any) -> None:
        self.told: dict[str, list[Membership]] = {node.name: [] for node in plan.allocation.nodes}
        self.addresses = {node.name: (f"10.0.0.{node.name[1:]}",) for node in plan.allocation.nodes}
        super().__init__(plan, trainer_s=None, **fields)

    def send(self, node: str, message: FromController) -> None:
        if isinstance(message, Membership):
            self.told[node].append(message)
        super().send(node, message)

    def handle(self, happening: Any) -> None:
        match happening:
            case AgentJoined(node=node, hello=hello):
                hop_port = 7000 if hello.gateway_port is not None else None
                happening = AgentJoined(node, replace(hello, addresses=self.addresses[node], hop_port=hop_port))
            case AgentSaid(node=node, message=GatewayBound() as bound):
                happening = AgentSaid(node, replace(bound, hop_port=7000))
        super().handle(happening)

    def peers_of(self, node: str) -> dict[str, Peer]:
        return {peer.node: peer for peer in self.told[node][-1].peers}


def start(plan: Plan) -> PeerWorld:
    world = PeerWorld(plan)
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    world.run_for(5.0)
    return world


def test_a_gateway_is_told_of_the_other_nodes_that_its_routes_name_and_of_no_more() -> None:
    world = start(build_test_plan([service("judge", 2)], nodes=("n1", "n2", "n3", "n4")))
    on = {seat.place.node for seat in world.run.fleet.seats.values()}
    assert len(on) == 2
    for node in ("n1", "n2", "n3", "n4"):
        assert world.peers_of(node) == {other: Peer(other, world.addresses[other], 7000) for other in on - {node}}


def test_one_node_is_told_of_nobody() -> None:
    world = start(build_test_plan([service("judge", 2)], nodes=("n1",)))
    assert world.told["n1"][-1].peers == ()


def test_a_node_that_comes_back_from_another_address_is_told_to_who_calls_it() -> None:
    world = start(build_test_plan([service("judge", 3)], nodes=("n1", "n2", "n3")))
    before = {node: len(messages) for node, messages in world.told.items()}
    world.addresses["n2"] = ("10.9.9.9", "10.0.0.2")
    world.nodes["n2"].join()
    world.run_for(5.0)
    assert world.peers_of("n1")["n2"].addresses == ("10.9.9.9", "10.0.0.2")
    assert world.peers_of("n3")["n2"].addresses == ("10.9.9.9", "10.0.0.2")
    # And an agent that comes back as it was concerns nobody but its own gateway.
    again = {node: len(messages) for node, messages in world.told.items()}
    world.nodes["n2"].join()
    world.run_for(5.0)
    told = {node: len(messages) - again[node] for node, messages in world.told.items()}
    assert (told["n1"], told["n3"]) == (0, 0)
    assert all(again[node] > before[node] for node in again)


def test_after_a_restart_of_the_controller_all_are_told_where_all_are_once_they_are_back() -> None:
    world = start(build_test_plan([service("judge", 3)], nodes=("n1", "n2", "n3")))
    world.kill_controller()
    world.run_for(10.0)
    for node in ("n1", "n2", "n3"):
        assert set(world.peers_of(node)) == {"n1", "n2", "n3"} - {node}
        assert len(world.told[node][-1].routes[0].backends) == 3


def test_a_lost_node_is_a_peer_of_nobody() -> None:
    plan = build_test_plan([service("judge", 3)], nodes=("n1", "n2", "n3"))
    plan = replace(plan, trainer=replace(plan.trainer, argv=()))
    world = start(plan)
    world.nodes["n3"].alive.clear()
    world.nodes["n3"].is_connected = False
    world.handle(NodeGone("n3", "silent"))
    world.run_for(5.0)
    assert "n3" not in world.peers_of("n1")


def make_ready(plan: Plan) -> dict[str, Seat]:
    return {
        key: replace(seat, replica=replace(seat.replica, phase=Phase.READY, incarnation=1), port=9)
        for key, seat in World(plan).run.fleet.seats.items()
    }


def test_in_a_large_run_a_nodes_own_replica_is_known_to_its_gateway_though_its_window_lacks_it() -> None:
    plan = build_test_plan([service("judge", 700), service("small", 2)], nodes=MANY)
    seats = make_ready(plan)
    # Placed against the order of the nodes: no window begins near its own node's replica.
    turned = {
        key: replace(s, place=replace(s.place, node=MANY[-1 - MANY.index(s.place.node)])) for key, s in seats.items()
    }
    book = RouteBook(plan, turned, Nodes(MANY, ()))
    hidden = 0
    for node in MANY:
        told = book.build(node)
        listed = [backend for route in told.routes for backend in route.backends]
        assert len(told.routes[0].backends) == FEWEST_TOLD
        own = {backend.replica for backend in [*listed, *told.hidden] if backend.node == node}
        assert own == {key for key, seat in turned.items() if seat.place.node == node}
        assert not set(told.hidden) & set(listed)
        assert all(backend.node == node for backend in told.hidden)
        hidden += len(told.hidden)
    assert hidden > 500


def test_no_more_addresses_of_a_node_are_told_than_a_bound_allows() -> None:
    nodes = Nodes(("n1",), ())
    many = tuple(f"10.0.0.{at}" for at in range(40))
    assert nodes.take_hello("n1", Hello("n1", "0", "nonce", hop_port=7, addresses=many))
    assert nodes.peers["n1"].addresses == many[:ADDRESSES_MAX]
    assert not nodes.take_hello("n1", Hello("n1", "0", "nonce", hop_port=7, addresses=many))


@pytest.mark.parametrize(("listen", "host"), [("loopback", "127.0.0.1"), ("node", "10.0.0.5")])
def test_a_replica_that_listens_on_the_nodes_address_is_asked_there(listen: str, host: str) -> None:
    plan = build_test_plan([service("judge")], nodes=("n1",))
    seat = make_ready(plan)["judge/0"]
    launch: LaunchSpec = replace(seat.place.launch, listen=listen)
    seats = {"judge/0": replace(seat, place=replace(seat.place, launch=launch))}
    nodes = Nodes(("n1",), ())
    nodes.take_hello("n1", Hello("n1", "0", "nonce", listen_host="10.0.0.5"))
    assert RouteBook(plan, seats, nodes).build("n1").routes[0].backends == (Backend("judge/0", 1, "n1", host, 9),)
