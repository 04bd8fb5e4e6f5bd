"""What a gateway is told of sandbox hosts: those that run, ready or not, and what became of the others."""

from retinue.channel.messages import Membership, Peer, Route
from retinue.plan.records import GroupPlan, Plan, TrainerPlan
from retinue.supervise.nodes import Nodes
from retinue.supervise.routes import CAUSE_CHARS, FEWEST_TOLD, RouteBook
from retinue.supervise.seat import Seat
from retinue.terms.record import replace
from retinue.terms.replica import Phase
from support.world import World, build_test_plan, service

MANY = tuple(f"n{index}" for index in range(800))


def build_plan(count: int, nodes: tuple[str, ...], callers: int | None = None) -> Plan:
    sandbox = replace(service("sandbox", count, is_per_node=True), kind="sandbox")
    plan = build_test_plan([sandbox], nodes=nodes, trainer=TrainerPlan("train", ("train",)))
    return replace(plan, groups=(*plan.groups, GroupPlan("train", nodes[: callers or len(nodes)])))


def make_seats(plan: Plan, phases: dict[str, tuple[Phase, int]] | None = None) -> dict[str, Seat]:
    """All ready in their first incarnation, but for those that are named."""
    seats = {}
    for key, seat in World(plan).run.fleet.seats.items():
        phase, incarnation = (phases or {}).get(key, (Phase.READY, 1))
        replica = replace(seat.replica, phase=phase, incarnation=incarnation, reason="exited with 9 " + "x" * 999)
        has_port = phase in (Phase.READY, Phase.UNREADY, Phase.STARTING)
        seats[key] = replace(seat, replica=replica, port=9 if has_port else None)
    return seats


def build(plan: Plan, seats: dict[str, Seat], node: str) -> Membership:
    names = [node.name for node in plan.allocation.nodes]
    nodes = Nodes(names, ())
    nodes.peers.update({name: Peer(name, ("10.0.0.1",), 7000) for name in names})
    return RouteBook(plan, seats, nodes).build(node)


def names_of(route: Route) -> tuple[list[str], list[str], list[str]]:
    ready, unready = ([backend.replica for backend in some] for some in (route.backends, route.unready))
    return ready, unready, [gone.replica for gone in route.gone]


def test_every_host_is_told_with_what_became_of_it() -> None:
    plan = build_plan(8, tuple(f"n{index}" for index in range(8)))
    phases = {
        "sandbox/1": (Phase.UNREADY, 1),
        "sandbox/2": (Phase.BACKOFF, 1),
        "sandbox/3": (Phase.STARTING, 2),
        "sandbox/4": (Phase.STARTING, 1),  # It never had a sandbox.
        "sandbox/5": (Phase.PENDING, 0),
        "sandbox/6": (Phase.FAILED, 4),
    }
    told = build(plan, make_seats(plan, phases), "n7")
    [route] = told.routes
    assert route.is_sandbox
    assert names_of(route) == (
        ["sandbox/0", "sandbox/7"],
        ["sandbox/1"],
        ["sandbox/2", "sandbox/3", "sandbox/6"],
    )
    assert route.gone[0].node == "n2"
    assert route.gone[0].cause.startswith("sandbox/2 backoff: exited with 9")
    assert len(route.gone[0].cause) == CAUSE_CHARS
    assert [peer.node for peer in told.peers] == ["n0", "n1"]


def test_only_sandboxes_are_told_like_that() -> None:
    plan = build_test_plan([service("judge", 2)], nodes=("n1", "n2"))
    [route] = build(plan, make_seats(plan, {"judge/0": (Phase.UNREADY, 1)}), "n1").routes
    assert (route.is_sandbox, route.unready, route.gone) == (False, (), ())


def test_a_window_of_hosts_stays_where_it_is_when_some_of_them_come_and_go() -> None:
    """A sandbox is used through the gateway it was made through: that one must not forget where it is."""
    plan = build_plan(700, MANY)
    [before] = build(plan, make_seats(plan), "n400").routes
    inside = [backend.replica for backend in before.backends]
    assert len(set(inside)) == FEWEST_TOLD
    outside = "sandbox/0"
    assert outside not in inside
    [after] = build(plan, make_seats(plan, {inside[0]: (Phase.BACKOFF, 1), outside: (Phase.FAILED, 1)}), "n400").routes
    ready, _, gone = names_of(after)
    assert ready + gone == [*inside[1:], inside[0]]


def test_the_own_host_is_known_to_its_gateway_though_its_window_lacks_it() -> None:
    plan = build_plan(700, MANY)
    for node in ("n0", "n350", "n699"):
        told = build(plan, make_seats(plan), node)
        known = [*told.routes[0].backends, *told.hidden]
        assert node in {backend.node for backend in known}


def test_a_few_callers_know_all_hosts() -> None:
    plan = build_plan(700, MANY, callers=4)
    [route] = build(plan, make_seats(plan), "n2").routes
    assert len(route.backends) == 700
