"""From the fleet's state to what a node's gateway is told. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from retinue.channel.messages import Backend, Gone, Membership, Peer, Route
from retinue.plan.records import Plan, ServicePlan
from retinue.supervise.nodes import Nodes
from retinue.supervise.seat import Seat
from retinue.terms.record import replace
from retinue.terms.replica import OnExhausted, Phase

SANDBOX = "sandbox"
CAUSE_CHARS = 300
"""Of what became of one replica."""
FALLBACK_COUNT = 8
"""Other nodes' replicas a gateway is told of for a per-node service: enough to survive its own node's
restart; all of them would cost nodes x nodes."""
FEWEST_TOLD = 32
TOLD_IN_ALL = 20_000
"""Backends of one service that all gateways together are told of: a full set to each would cost nodes x replicas."""


class RouteBook:
    """The routes of one moment: what is the same for all nodes is worked out once.

    A gateway of a large run is told a window of a service's replicas, as wide as TOLD_IN_ALL allows. The windows
    begin at fixed places, evenly spread: every replica is in as many as any other, and one replica's change
    concerns the few nodes whose windows it is in. Nodes that are known to call a service (the trainer's, its
    dependants') share a TOLD_IN_ALL of their own: where they are few, they know all replicas.

    A window may lack the node's own replicas; other nodes' gateways send there all the same (`hidden`).

    A sandbox is used through the gateway that it was made through, so a window of sandbox replicas never moves: those
    in it that run and are not ready are told too, and what became of those that do not run.
    """

    def __init__(self, plan: Plan, seats: Mapping[str, Seat], nodes: Nodes, earlier: "RouteBook | None" = None) -> None:
        """`earlier`: the book before this one, whose pages of services that did not change are taken over."""
        names = [node.name for node in plan.allocation.nodes]
        self._at = {name: place for place, name in enumerate(names)}
        self._peers = dict(nodes.peers)
        known = {} if earlier is None else earlier._shelves
        self._shelves: dict[str, _Shelf] = {}
        for service in plan.services:
            if service.has_port and service.is_http:
                mine = [seats[key] for key in service.replicas]
                callers = _find_callers(plan, service, seats)
                shelf = known.get(service.name)
                if shelf is None or not shelf.is_still(mine, callers):
                    shelf = _Shelf(plan, service, mine, callers, nodes)
                self._shelves[service.name] = shelf

    def build(self, node: str, epoch: int = 0) -> Membership:
        """Build the full set of routes for one node's gateway."""
        routes = tuple(shelf.build_route(node, self._at[node]) for shelf in self._shelves.values())
        pairs = zip(self._shelves.values(), routes, strict=True)
        hidden = tuple(backend for shelf, route in pairs for backend in shelf.list_hidden(node, route))
        return Membership(epoch, routes, self._find_peers(node, routes), hidden)

    def _find_peers(self, node: str, routes: Sequence[Route]) -> tuple[Peer, ...]:
        if not self._peers:
            return ()
        named = dict.fromkeys(one.node for route in routes for one in (*route.backends, *route.unready))
        return tuple(self._peers[name] for name in named if name != node and name in self._peers)


class _Shelf:
    """One service's published replicas, in the order of the plan."""

    def __init__(
        self, plan: Plan, service: ServicePlan, mine: list[Seat], callers: frozenset[str], nodes: Nodes
    ) -> None:
        self._mine, self._network = mine, nodes
        self._is_sandbox = service.kind == SANDBOX
        self._fixed: dict[tuple[int, int], Route] = {}
        self._places: list[int] = []
        """Place in the plan of each backend: windows are found by it."""
        self._backends: list[Backend] = []
        self._own: dict[str, list[Backend]] = {}
        for place, seat in enumerate(mine):
            if seat.replica.phase is Phase.READY and (backend := _build_backend(seat, nodes)) is not None:
                self._places.append(place)
                self._backends.append(backend)
                self._own.setdefault(backend.node, []).append(backend)
        self._planned = len(mine)
        self._callers = callers
        self._nodes = len(plan.allocation.nodes)
        self._widths = (_compute_width(self._nodes), _compute_width(len(self._callers)))
        self._is_per_node = service.is_per_node
        self._whole = _build_route(plan, service, mine, self._backends)

    def is_still(self, mine: list[Seat], callers: frozenset[str]) -> bool:
        """Tell whether nothing changed; an address on which replicas listen may change with a node's agent."""
        has_addresses = any(seat.place.launch.listen == "node" for seat in mine[:1])
        return not has_addresses and self._mine == mine and self._callers == callers

    def build_route(self, node: str, at: int) -> Route:
        """Build the route as one node's gateway sees it; `at` is the node's place among all."""
        if self._is_sandbox:
            width = min(self._planned, self._widths[node in self._callers])
            first = at * self._planned // self._nodes if width < self._planned else 0
            if (first, width) not in self._fixed:
                self._fixed[first, width] = self._build_fixed((self._mine + self._mine)[first : first + width])
            return self._fixed[first, width]
        if self._is_per_node:
            own = self._own.get(node, [])
            others = [backend for backend in self._cut(at, FALLBACK_COUNT + len(own)) if backend.node != node]
            return self._with([*own, *others[:FALLBACK_COUNT]])
        width = self._widths[node in self._callers]
        if len(self._backends) <= width:
            return self._whole
        return self._with(self._cut(at, width))

    def list_hidden(self, node: str, route: Route) -> list[Backend]:
        """List the node's own backends that its route leaves out."""
        own = self._own.get(node)
        if not own or route is self._whole or (self._is_per_node and not self._is_sandbox):
            return []
        told = {backend.replica for backend in route.backends}
        return [backend for backend in own if backend.replica not in told]

    def _build_fixed(self, window: list[Seat]) -> Route:
        """Build a route of replicas that are the same for the whole run, with what is to be said of each."""
        ready = self._list_backends(window, Phase.READY)
        unready = self._list_backends(window, Phase.UNREADY)
        told = {backend.replica for backend in (*ready, *unready)}
        gone = tuple(_build_gone(seat) for seat in window if seat.replica.id not in told and _has_run(seat))
        return replace(self._whole, backends=ready, is_sandbox=True, unready=unready, gone=gone)

    def _list_backends(self, window: list[Seat], phase: Phase) -> tuple[Backend, ...]:
        mine = (_build_backend(seat, self._network) for seat in window if seat.replica.phase is phase)
        return tuple(backend for backend in mine if backend is not None)

    def _cut(self, at: int, width: int) -> list[Backend]:
        first = bisect_left(self._places, at * self._planned // self._nodes)
        window = self._backends[first : first + width]
        return window + self._backends[: min(first, width - len(window))]

    def _with(self, backends: Sequence[Backend]) -> Route:
        return replace(self._whole, backends=tuple(backends))


def _find_callers(plan: Plan, service: ServicePlan, seats: Mapping[str, Seat]) -> frozenset[str]:
    """Find the nodes that are known to call a service; nothing keeps the others from doing so."""
    trainer = next((group.nodes for group in plan.groups if group.name == plan.trainer.group), ())
    dependants = [other for other in plan.services if any(edge.service == service.name for edge in other.depends_on)]
    return frozenset(trainer).union(seats[key].place.node for other in dependants for key in other.replicas)


def _compute_width(callers: int) -> int:
    return max(FEWEST_TOLD, TOLD_IN_ALL // max(1, callers))


def _build_route(plan: Plan, service: ServicePlan, mine: Sequence[Seat], backends: Sequence[Backend]) -> Route:
    is_hopeless = service.on_exhausted is OnExhausted.DEGRADE and all(s.replica.phase.is_terminal for s in mine)
    return Route(
        service=service.name,
        backends=tuple(backends),
        is_per_node=service.is_per_node,
        rules=service.calls,
        wants_token=service.wants_token,
        hold_s=0.0 if is_hopeless else plan.hold_s,
        unready_since_utc=None if backends else max((seat.changed_utc for seat in mine), default=0.0),
        cause="" if backends else _describe(mine),
    )


def _build_backend(seat: Seat, nodes: Nodes) -> Backend | None:
    """Build where a replica is reached; None: it has no port yet."""
    if seat.port is None:
        return None
    on = seat.place.node
    host = nodes.find_listen_host(on) if seat.place.launch.listen == "node" else "127.0.0.1"
    return Backend(seat.replica.id, seat.replica.incarnation, on, host, seat.port)


def _has_run(seat: Seat) -> bool:
    """Tell whether there was an incarnation that may have had sandboxes, and is no more or about to be."""
    replica = seat.replica
    return replica.incarnation > 1 or (replica.incarnation == 1 and replica.phase is not Phase.STARTING)


def _build_gone(seat: Seat) -> Gone:
    return Gone(seat.replica.id, seat.place.node, _describe([seat])[:CAUSE_CHARS])


def _describe(seats: Sequence[Seat]) -> str:
    return "; ".join(f"{seat.replica.id} {seat.replica.phase.value}: {seat.replica.reason}" for seat in seats[:4])
