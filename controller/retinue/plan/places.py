"""Choose nodes and devices: groups of nodes, what is free on each, who goes where.

The same rules place a replica the first time and again after its node was lost.
"""

from collections.abc import Iterable, Mapping, Sequence

from retinue.allocation.records import Node
from retinue.plan.records import GroupPlan, ReplicaPlan
from retinue.terms.record import Record

ALL = "all"
"""The group that always exists."""
SHOWN_NODES = 12
"""More nodes than this are summed up in a message."""


class Want(Record, frozen=True):
    """What one replica asks of a node."""

    service: str
    gpus: int = 0
    """Whole devices."""
    cpus: int = 0
    """0: not counted."""
    memory_mib: int = 0
    """0: not counted."""
    shares_gpus: bool = False
    wants_pack: bool = False

    def render(self) -> str:
        """Name what is asked: `4 GPUs, 16 CPUs`; empty when nothing is counted."""
        return ", ".join(_render_amounts(self, self.gpus, self.cpus, self.memory_mib, with_units=True))


class Place(Record, frozen=True):
    """A node, the devices there, and the reason."""

    node: str
    gpus: tuple[int, ...]
    why: str


class _Holding(Record):
    """What is taken on one node; changes while replicas are placed."""

    exclusive: set[int]
    shared: dict[int, int]
    """Device -> replicas that share it."""
    cpus: int
    memory_mib: int
    replicas: dict[str, int]
    """Service -> replicas here."""


class Ledger:
    """What is free on each node, kept while replicas are placed one after the other."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._held = {name: _Holding(set(), {}, 0, 0, {}) for name in self._nodes}
        # Only the node just taken from changes between two replicas of a service: thousands of nodes stay known.
        self._scored: Want | None = None
        self._scores: dict[str, tuple[int, ...] | None] = {}

    def take(self, want: Want, node: str, gpus: Iterable[int]) -> None:
        """Note that a replica holds its share of a node."""
        self._scores.pop(node, None)
        held = self._held[node]
        held.cpus += want.cpus
        held.memory_mib += want.memory_mib
        held.replicas[want.service] = held.replicas.get(want.service, 0) + 1
        for device in gpus:
            if want.shares_gpus:
                held.shared[device] = held.shared.get(device, 0) + 1
            else:
                held.exclusive.add(device)

    def choose(self, want: Want, group: str, nodes: Sequence[str]) -> Place | None:
        """Choose a node of the group; None when the replica fits nowhere.

        Shape: spread takes the most free of what is asked, then fewest replicas of the service, then node
               order; pack the least free that still fits, then node order.
        """
        if want != self._scored:
            self._scored, self._scores = want, {}
        scores = [(score, at) for at, node in enumerate(nodes) if (score := self._score(want, node)) is not None]
        if not scores:
            return None
        node = nodes[min(scores)[1]]
        return Place(node=node, gpus=self._devices(want, node)[: want.gpus], why=self._why(want, group, nodes, node))

    def render_free(self, want: Want, nodes: Sequence[str]) -> str:
        """Say what is free of what is asked: `n03 2, n04 0`; with units when several things are asked."""
        with_units = sum(1 for amount in (want.gpus, want.cpus, want.memory_mib) if amount) > 1
        shown = []
        for node in nodes[:SHOWN_NODES]:
            amounts = _render_amounts(
                want, len(self._devices(want, node)), self._free_cpus(node), self._free_mib(node), with_units
            )
            shown.append(f"{node} {' and '.join(amounts)}")
        if len(nodes) > SHOWN_NODES:
            shown.append(f"and {len(nodes) - SHOWN_NODES} more nodes")
        return ", ".join(shown)

    def _fits(self, want: Want, node: str) -> bool:
        if len(self._devices(want, node)) < want.gpus:
            return False
        if want.cpus and self._free_cpus(node) < want.cpus:
            return False
        free_mib = self._free_mib(node)
        return free_mib < 0 or free_mib >= want.memory_mib

    def _devices(self, want: Want, node: str) -> tuple[int, ...]:
        """List the devices this replica may have, best first."""
        held = self._held[node]
        free = [at for at in range(self._nodes[node].gpus) if at not in held.exclusive]
        if not want.shares_gpus:
            return tuple(at for at in free if at not in held.shared)
        return tuple(sorted(free, key=lambda at: (held.shared.get(at, 0), at)))

    def _measure(self, want: Want, node: str) -> tuple[int, ...]:
        """Tell how much is free of what is asked, most important first."""
        held = self._held[node]
        amounts = []
        if want.gpus:
            # A device that is shared already counts as less free than one nobody has.
            amounts.append(self._nodes[node].gpus - len(held.exclusive) - len(held.shared))
            amounts.append(-sum(held.shared.values()))
        if want.cpus:
            amounts.append(self._free_cpus(node))
        if want.memory_mib:
            amounts.append(self._free_mib(node))
        return tuple(amounts)

    def _score(self, want: Want, node: str) -> tuple[int, ...] | None:
        """Rate a node, lowest is best; None when the replica does not fit there."""
        if node not in self._scores:
            measure = self._measure(want, node)
            rank = measure if want.wants_pack else (*(-amount for amount in measure), self._own(want, node))
            self._scores[node] = rank if self._fits(want, node) else None
        return self._scores[node]

    def _own(self, want: Want, node: str) -> int:
        return self._held[node].replicas.get(want.service, 0)

    def _free_cpus(self, node: str) -> int:
        return self._nodes[node].cpus - self._held[node].cpus

    def _free_mib(self, node: str) -> int:
        """-1: nobody knows what the node has; then memory is no reason to refuse."""
        size_mib = self._nodes[node].memory_mib
        return max(0, size_mib - self._held[node].memory_mib) if size_mib else -1

    def _why(self, want: Want, group: str, nodes: Sequence[str], node: str) -> str:
        if len(nodes) == 1:
            return f"the only node of group {group}"
        if not want.render():
            if want.wants_pack:
                return f"first node of group {group}; nothing is counted"
            return f"fewest replicas of {want.service} in group {group} ({self._own(want, node)} before this one)"
        amounts = _render_amounts(
            want, len(self._devices(want, node)), self._free_cpus(node), self._free_mib(node), with_units=True
        )
        rule = "least free that fits" if want.wants_pack else "most free"
        return f"{rule} in group {group}: {' and '.join(amounts)}"


def build_groups(
    counts: Mapping[str, int | str], nodes: Sequence[Node], problems: list[str], warnings: list[str]
) -> tuple[GroupPlan, ...]:
    """Cut the nodes into groups in order; `rest` takes what the others leave; `all` comes last and is every node.

    Errors: appends to `problems` what does not fit, to `warnings` which nodes belong to no group.
    """
    names = tuple(node.name for node in nodes)
    everything = GroupPlan(name=ALL, nodes=names)
    counts = {name: count for name, count in counts.items() if name != ALL}
    rests = [name for name, count in counts.items() if not isinstance(count, int)]
    fixed = sum(count for count in counts.values() if isinstance(count, int))
    left = len(names) - fixed - len(rests)
    if len(rests) > 1:
        problems.append(f"nodes: {' and '.join(rests)} both take the rest; one group can")
    elif left < 0:
        asked = ", ".join(f"{name} {'at least 1' if name in rests else count}" for name, count in counts.items())
        problems.append(f"nodes: needs {fixed + len(rests)} nodes ({asked}); the allocation has {len(names)}")
    if len(rests) > 1 or left < 0:
        return (*(GroupPlan(name=name, nodes=()) for name in counts), everything)
    groups: list[GroupPlan] = []
    start = 0
    for name, count in counts.items():
        size = count if isinstance(count, int) else left + 1
        groups.append(GroupPlan(name=name, nodes=names[start : start + size]))
        start += size
    if counts and start < len(names):
        warnings.append(f"{', '.join(names[start:])} in no group of nodes; only services on `all` are placed there")
    return (*groups, everything)


def read_want(place: ReplicaPlan) -> Want:
    """Tell what a placed replica asked for."""
    return Want(
        service=place.service,
        gpus=len(place.gpus),
        cpus=place.cpus,
        memory_mib=place.memory_mib,
        shares_gpus=place.shares_gpus,
        wants_pack=place.wants_pack,
    )


def _render_amounts(want: Want, gpus: int, cpus: int, memory_mib: int, with_units: bool) -> list[str]:
    """Write those amounts that the replica asks for."""
    amounts = ((want.gpus, gpus, "GPU"), (want.cpus, cpus, "CPU"))
    words = [
        f"{amount} {unit}{'' if amount == 1 else 's'}" if with_units else str(amount)
        for asked, amount, unit in amounts
        if asked
    ]
    if want.memory_mib:
        words.append(f"{memory_mib} MiB" if memory_mib >= 0 else "unknown memory")
    return words
