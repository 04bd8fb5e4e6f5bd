"""Who may start now, who never will, who is stopped next, and who is restarted with whom.

Reads the phases of all replicas and the edges between services; never changes a
replica, and knows no plan: the few fields it needs are the Protocols below.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from retinue.terms.replica import OnExhausted, Phase, Replica


class DependencyEdge(Protocol):
    """One edge of `depends_on`; Compose's conditions."""

    @property
    def service(self) -> str: ...
    @property
    def condition(self) -> str: ...
    @property
    def is_required(self) -> bool: ...
    @property
    def wants_restart(self) -> bool: ...


class ServiceNode(Protocol):
    """A service with its replicas and what it waits for."""

    @property
    def name(self) -> str: ...
    @property
    def replicas(self) -> Sequence[str]: ...
    @property
    def min_ready(self) -> int: ...
    @property
    def depends_on(self) -> Sequence[DependencyEdge]: ...


class _Graph(NamedTuple):
    services: Mapping[str, ServiceNode]
    replicas: Mapping[str, Replica]

    def of_service(self, name: str) -> list[Replica]:
        return [self.replicas[key] for key in self.services[name].replicas]


def is_service_ready(min_ready: int, replicas: Iterable[Replica]) -> bool:
    """Say whether enough replicas are published, or have completed."""
    return sum(replica.is_there for replica in replicas) >= min_ready


def find_ready_to_start(services: Sequence[ServiceNode], replicas: Mapping[str, Replica]) -> tuple[str, ...]:
    """Find the pending replicas whose dependencies all hold.

    Shape: replica ids in the order of the services. A replica whose node was lost is pending too:
           the caller leaves out those that still wait for a place.
    """
    graph = _Graph({service.name: service for service in services}, replicas)
    return tuple(
        key
        for service in services
        if all(_holds(graph, edge) for edge in service.depends_on)
        for key in service.replicas
        if replicas[key].phase is Phase.PENDING
    )


def find_hopeless(services: Sequence[ServiceNode], replicas: Mapping[str, Replica]) -> dict[str, str]:
    """Find the pending replicas that can never start, because something they require failed for good.

    Shape: replica id -> the path to the cause in words, `needs judge ready; needs corpus ready; corpus/0 is
           failed: ...`. Not hopeless: what an operator's restart may still bring back (`on_exhausted: hold`).
    """
    graph = _Graph({service.name: service for service in services}, replicas)
    found: dict[str, str] = {}
    for service in services:
        pending = [key for key in service.replicas if replicas[key].phase is Phase.PENDING]
        if pending and (path := _find_doom(graph, service)):
            found |= dict.fromkeys(pending, "; ".join(path))
    return found


def next_to_stop(
    stop_lanes: Sequence[Sequence[str]], services: Sequence[ServiceNode], replicas: Mapping[str, Replica]
) -> tuple[str, ...]:
    """Find the replicas to be asked to stop now: those of the first lane that is not over yet.

    Shape: ids that are neither terminal nor being stopped for good; empty while a lane is waited for,
           and when all is over. Services that no lane names come last: nothing is left behind.
    """
    named = {name for lane in stop_lanes for name in lane}
    rest = [service.name for service in services if service.name not in named]
    graph = _Graph({service.name: service for service in services}, replicas)
    for lane in (*stop_lanes, rest):
        running = [replica for name in lane for replica in graph.of_service(name) if not replica.phase.is_terminal]
        if running:
            return tuple(replica.id for replica in running if not _is_ending(replica))
    return ()


def find_restart_dependants(service: str, services: Sequence[ServiceNode]) -> tuple[str, ...]:
    """Find the services to be restarted when this one gets a new incarnation.

    Shape: direct dependants only; their own new incarnations reach the next ones.
    """
    return tuple(
        other.name
        for other in services
        if any(edge.service == service and edge.wants_restart for edge in other.depends_on)
    )


def _is_ending(replica: Replica) -> bool:
    return replica.phase is Phase.STOPPING and not replica.wants_relaunch


def _holds(graph: _Graph, edge: DependencyEdge) -> bool:
    """Say whether a dependency holds nobody back (any more)."""
    replicas = graph.of_service(edge.service)
    met = sum(_meets(replica, edge.condition) for replica in replicas)
    needed = _count_needed(graph, edge)
    if met >= needed:
        return True
    able = sum(not _is_lost(replica, edge.condition) for replica in replicas)
    return not edge.is_required and (able < needed or bool(_find_edge_doom(graph, edge)))


def _count_needed(graph: _Graph, edge: DependencyEdge) -> int:
    service = graph.services[edge.service]
    return len(service.replicas) if edge.condition == "completed" else service.min_ready


def _meets(replica: Replica, condition: str) -> bool:
    match condition:
        case "completed":
            return replica.is_completed
        case "ready":
            return replica.is_there
        case _:
            return replica.is_completed or (replica.is_started and replica.phase is not Phase.STOPPING)


def _is_lost(replica: Replica, condition: str) -> bool:
    """Say whether a replica ended and, left alone, will never meet the condition."""
    return replica.phase.is_terminal and not _meets(replica, condition)


def _is_hopeless(replica: Replica, condition: str) -> bool:
    may_come_back = replica.policy.restart.on_exhausted is OnExhausted.HOLD and replica.phase is Phase.FAILED
    return _is_lost(replica, condition) and not may_come_back


def _find_doom(graph: _Graph, service: ServiceNode) -> tuple[str, ...]:
    """Find why a service's pending replicas can never start; empty when they may."""
    for edge in service.depends_on:
        if edge.is_required and (path := _find_edge_doom(graph, edge)):
            return path
    return ()


def _find_edge_doom(graph: _Graph, edge: DependencyEdge) -> tuple[str, ...]:
    """Find why a condition can never be met; terminates because a plan has no cycles."""
    head = f"needs {edge.service} {edge.condition}"
    replicas = graph.of_service(edge.service)
    lost = [replica for replica in replicas if _is_hopeless(replica, edge.condition)]
    needed = _count_needed(graph, edge)
    if len(replicas) - len(lost) < needed:
        # More are wanted than the service has: then nothing ended, and the numbers are the reason.
        ends = [f"{replica.id} is {replica.phase.value}: {replica.reason}" for replica in lost[:1]]
        return (head, *ends) if ends else (head, f"{edge.service} has {len(replicas)} of {needed}")
    path = _find_doom(graph, graph.services[edge.service])
    waiting = sum(replica.phase is Phase.PENDING for replica in replicas)
    return (head, *path) if path and len(replicas) - len(lost) - waiting < needed else ()
