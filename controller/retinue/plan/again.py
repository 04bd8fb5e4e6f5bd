"""Another place for a replica whose node was lost."""

from collections.abc import Iterable, Set

from retinue.plan.places import Ledger, read_want
from retinue.plan.records import Plan, ReplicaPlan
from retinue.plan.seats import place_launch
from retinue.terms.record import replace


def place_again(plan: Plan, replica_id: str, lost_nodes: Set[str], taken: Iterable[ReplicaPlan]) -> ReplicaPlan | str:
    """Find another node of the group with what the replica needs.

    Shape:  `taken` are the replicas that hold their places now, wherever the plan first had them; the replica's own
            entry there does not count. The answer is a place on a node that is not lost, or the reason why there
            is none, in words: a replica without a place is an event, not an exception.
    """
    place = next((place for place in plan.replicas if place.id == replica_id), None)
    if place is None:
        return f"cannot place '{replica_id}' again: the plan has no such replica"
    if not place.policy.is_movable:
        return f"cannot place {replica_id} again: it belongs on {place.node}"
    group = next(group for group in plan.groups if group.name == place.group)
    nodes = [node for node in group.nodes if node not in lost_nodes]
    if not nodes:
        return f"cannot place {replica_id} again: every node of group {group.name} is lost"
    ledger = Ledger(plan.allocation.nodes)
    for other in taken:
        if other.id != replica_id:
            ledger.take(read_want(other), other.node, other.gpus)
    want = read_want(place)
    found = ledger.choose(want, group.name, nodes)
    if found is None:
        free = ledger.render_free(want, nodes)
        return f"cannot place {replica_id} again: needs {want.render()} on one node of group {group.name}; free: {free}"
    return replace(
        place,
        node=found.node,
        gpus=found.gpus,
        launch=place_launch(place.unplaced or place.launch, found.node, found.gpus),
        why=f"placed again: {found.why}",
    )
