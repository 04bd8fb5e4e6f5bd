"""From the fleet's state to what a node's gateway is told. Pure."""

from collections.abc import Mapping, Sequence

from retinue.channel.messages import Backend, Membership, Route
from retinue.plan.records import Plan, ServicePlan
from retinue.supervise.fleet import Seat
from retinue.terms.replica import OnExhausted, Phase

FALLBACK_COUNT = 8
"""Other nodes' replicas a gateway is told of for a per-node service: enough to survive its own node's
restart; all of them would cost nodes x nodes."""


def build_membership(plan: Plan, seats: Mapping[str, Seat], node: str, epoch: int) -> Membership:
    """Build the full set of routes for one node's gateway."""
    services = [service for service in plan.services if service.has_port and service.is_http]
    return Membership(epoch=epoch, routes=tuple(_build_route(plan, service, seats, node) for service in services))


def _build_route(plan: Plan, service: ServicePlan, seats: Mapping[str, Seat], node: str) -> Route:
    mine = [seats[key] for key in service.replicas]
    backends = [
        Backend(seat.replica.id, seat.replica.incarnation, seat.place.node, "127.0.0.1", seat.port)
        for seat in mine
        if seat.replica.phase is Phase.READY and seat.port is not None
    ]
    if service.is_per_node:
        backends = _prefer_own(backends, node)
    is_hopeless = service.on_exhausted is OnExhausted.DEGRADE and all(s.replica.phase.is_terminal for s in mine)
    return Route(
        service=service.name,
        backends=tuple(backends),
        is_per_node=service.is_per_node,
        hold_s=0.0 if is_hopeless else plan.hold_s,
        unready_since_utc=None if backends else max((seat.changed_utc for seat in mine), default=0.0),
        cause="" if backends else _describe(mine),
    )


def _prefer_own(backends: list[Backend], node: str) -> list[Backend]:
    own = [backend for backend in backends if backend.node == node]
    others = [backend for backend in backends if backend.node != node]
    start = hash_text(node) % len(others) if others else 0
    return own + (others[start:] + others[:start])[:FALLBACK_COUNT]


def hash_text(text: str) -> int:
    """Spread names evenly and the same way in every process (unlike `hash`)."""
    value = 2166136261
    for byte in text.encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def _describe(seats: Sequence[Seat]) -> str:
    return "; ".join(f"{seat.replica.id} {seat.replica.phase.value}: {seat.replica.reason}" for seat in seats[:4])
