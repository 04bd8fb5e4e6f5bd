"""The two tables of `top`: which columns fit into a width, and what stands in them. Pure."""

from collections import Counter
from collections.abc import Sequence

from retinue.cli.top_rows import Row, find_phase
from retinue.journal.status import NodeStatus, ServiceStatus, Status

Columns = Sequence[tuple[str, int, bool]]
"""(heading in lower case, width, whether it is a number); the last one takes what is left."""

WIDE = 110
STYLES = {
    "ready": "",
    "stopped": "dim",
    "pending": "dim",
    "starting": "warn",
    "stopping": "warn",
    "unready": "warn",
    "backoff": "bad",
    "failed": "bad",
    "joined": "",
    "joining": "warn",
    "lost": "bad",
    "ended": "dim",
}


def build_service_columns(status: Status | None, width: int) -> Columns:
    """Choose the columns of services and replicas."""
    services = status.services if status else ()
    # A replica's row: two blanks, the service's name, its index.
    longest = max((len(service.name) + 3 + len(str(service.wanted)) for service in services), default=0)
    columns = [
        ("service", max(7, min(longest, width // 4)), False),
        ("phase", 8, False),
        ("ready", 2 * max((len(str(service.wanted)) for service in services), default=1) + 1, True),
        ("restarts", 8, True),
        ("in flight", 9, True),
    ]
    if width >= WIDE:
        columns += [("node", 16, False), ("for", 5, True)]
    columns = [(name, max(size, len(name)), is_number) for name, size, is_number in columns]
    return _add_rest(columns, "last", width)


def build_node_columns(nodes: Sequence[NodeStatus], width: int) -> Columns:
    longest = max((len(node.name) for node in nodes), default=0)
    columns = [
        ("node", max(7, min(longest, width // 4)), False),
        ("state", 7, False),
        ("load/cpu", 8, True),
        ("free mem", 8, True),
        ("gateway", 18, False),
    ]
    return _add_rest(columns, "note", width)


def _add_rest(columns: list[tuple[str, int, bool]], name: str, width: int) -> Columns:
    taken = 2 + sum(size + 1 for _, size, _ in columns)
    return [*columns, (name, max(0, width - taken), False)]


def build_row_cells(row: Row, now_utc: float) -> tuple[dict[str, str], str]:
    """Fill a row of a service or a replica; returns its cells and its style."""
    phase = find_phase(row)
    cells = {"phase": phase, "restarts": str(row.restarts), "last": row.reason}
    if isinstance(row, ServiceStatus):
        cells |= {"service": row.name, "ready": f"{row.ready}/{row.wanted}", "in flight": str(row.in_flight)}
    else:
        cells |= {"service": f"  {row.id}", "node": row.node, "for": format_short(now_utc - row.since_utc)}
    return cells, STYLES.get(phase, "warn")


def build_node_cells(node: NodeStatus) -> tuple[dict[str, str], str]:
    """Fill a row of a node; one that has not joined, or is gone, has nothing to measure."""
    note = node.cause or node.weaker or (f"loop lag {node.lag_s:.1f} s" if node.lag_s >= 0.1 else node.rung)
    if node.agent_starts > 1:
        note = f"agent started {node.agent_starts} times; {note}"
    cells = {"node": node.name, "state": node.state, "note": note}
    if node.state == "joined":
        cells |= {
            "load/cpu": f"{node.load_per_cpu:.2f}",
            "free mem": format_mib(node.memory_free_mib),
            "gateway": _describe_gateway(node),
        }
    return cells, STYLES.get(node.state, "warn")


def _describe_gateway(node: NodeStatus) -> str:
    if node.gateway_port is None:
        return "not bound"
    trouble = f"{format_count(node.held)} held" if node.held else f"{format_count(node.failed)} failed"
    return f"{format_count(node.requests)} req" + (f", {trouble}" if node.held or node.failed else "")


def count_states(nodes: Sequence[NodeStatus]) -> str:
    """`3 joined, 1 lost`."""
    return ", ".join(f"{number} {state}" for state, number in Counter(node.state for node in nodes).items())


def format_mib(mib: int) -> str:
    return f"{mib} MiB" if mib < 10_000 else f"{mib / 1024:.0f} GiB"


def format_count(number: int) -> str:
    """At most four characters up to a billion."""
    for limit, divisor, unit in ((10_000, 1, ""), (1_000_000, 1_000, "k"), (1_000_000_000, 1_000_000, "M")):
        if number < limit:
            return f"{number // divisor}{unit}"
    return f"{number // 1_000_000_000}G"


def format_short(span_s: float) -> str:
    """`45s`, `12m`, `7h`, `3d`."""
    total = max(0, int(span_s))
    for limit, divisor, unit in ((100, 1, "s"), (6_000, 60, "m"), (172_800, 3_600, "h")):
        if total < limit:
            return f"{total // divisor}{unit}"
    return f"{total // 86_400}d"
