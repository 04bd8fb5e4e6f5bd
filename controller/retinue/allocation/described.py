"""An allocation that somebody describes: `retinue plan --nodes 'n[01-04]' --gpus 8 --cpus 64`."""

from retinue.allocation.nodelist import parse_distinct_nodelist
from retinue.allocation.records import Allocation, Node
from retinue.errors import AllocationError


def parse_description(nodes: str, gpus: int = 0, cpus: int = 1, memory_mib: int = 0) -> Allocation:
    """Build the allocation of equal nodes that the command line describes.

    Units:  gpus, cpus and memory_mib per node; memory_mib 0: unknown.
    Errors: AllocationError for a node list that cannot be read or a count below its floor.
    """
    for what, value, floor in (("--gpus", gpus, 0), ("--cpus", cpus, 1), ("--memory", memory_mib, 0)):
        if value < floor:
            raise AllocationError(f"cannot describe an allocation: {what} is {value}, at least {floor} is needed")
    names = parse_distinct_nodelist(nodes)
    return Allocation(
        nodes=tuple(Node(name=name, cpus=cpus, memory_mib=memory_mib, gpus=gpus) for name in names),
        source="described",
        batch_host=names[0],
    )
