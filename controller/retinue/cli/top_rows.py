"""Which rows `top` has, in which order, and which fit. Pure; formats nothing, so that ten thousand are cheap."""

from collections.abc import Sequence
from typing import Any

from retinue.cli.top_sight import SORTS, Choice
from retinue.journal.status import ReplicaStatus, ServiceStatus, Status

Row = ServiceStatus | ReplicaStatus

WORST_FIRST = ("failed", "backoff", "unready", "stopping", "starting", "pending", "ready", "stopped")
WELL = ("ready", "stopped")
FEW = 40
"""Replicas up to which all of them are shown by themselves."""


def list_rows(status: Status | None, choice: Choice) -> list[Row]:
    """List services, each followed by its replicas when it has several."""
    if status is None:
        return []
    shows_all = wants_all(status, choice)
    by_service: dict[str, list[ReplicaStatus]] = {service.name: [] for service in status.services}
    for replica in status.replicas:
        if shows_all or replica.phase not in WELL:
            by_service.setdefault(replica.id.partition("/")[0], []).append(replica)
    rows: list[Row] = []
    for service in _sort(status.services, choice.sort):
        rows.append(service)
        if service.wanted > 1:
            rows += _sort(by_service[service.name], choice.sort)
    return rows


def wants_all(status: Status, choice: Choice) -> bool:
    return len(status.replicas) <= FEW if choice.shows_all is None else choice.shows_all


def _sort(rows: Sequence[Any], sort: str) -> list[Any]:
    match sort:
        case "phase":
            return sorted(rows, key=lambda row: _rank(find_phase(row)))
        case "restarts":
            return sorted(rows, key=lambda row: -row.restarts)
        case "in flight":
            # The gateways count by service; replicas keep their order.
            return sorted(rows, key=lambda row: -getattr(row, "in_flight", 0))
        case "name":
            return sorted(rows, key=lambda row: _split_name(get_key(row)))
        case _:
            return list(rows)


def _split_name(key: str) -> tuple[str, int]:
    name, _, index = key.partition("/")
    return name, int(index) if index.isdecimal() else -1


def get_key(row: Row) -> str:
    return row.name if isinstance(row, ServiceStatus) else row.id


def find_phase(row: Row) -> str:
    """Of a service: that of its worst replica."""
    if isinstance(row, ReplicaStatus):
        return row.phase
    return min(row.phases, key=_rank, default="pending")


def _rank(phase: str) -> int:
    """A later version's phase is looked at first."""
    return WORST_FIRST.index(phase) if phase in WORST_FIRST else -1


def find_index(keys: Sequence[str], selected: str) -> int:
    """Find the selected row; that of its service when a replica's is gone, else the first."""
    for key in (selected, selected.partition("/")[0]):
        if key in keys:
            return keys.index(key)
    return 0


def find_next_sort(sort: str) -> str:
    return SORTS[(SORTS.index(sort) + 1) % len(SORTS)]


def find_window(selected: int, count: int, size: int) -> tuple[int, int]:
    """Choose which rows are shown, first and end: always the selected one, in the middle where that is possible."""
    first = max(0, min(selected - size // 2, count - size))
    return first, min(count, first + size)


def divide_height(body: int, services: int, nodes: int, is_nodes_pane: bool) -> tuple[int, int, int]:
    """Divide what is left of the screen among services, nodes and events; what one does not need, events get."""
    node_rows = min(nodes, max(2, body // (2 if is_nodes_pane else 4)), max(0, body - 1))
    event_rows = min(4, body // 4)
    service_rows = max(1, min(services, body - node_rows - event_rows))
    return service_rows, node_rows, max(0, body - service_rows - node_rows)
