"""How a sandbox service was told to run, and what its budget is where nobody said."""

import os
import resource
from pathlib import Path

from retinue.sandbox.budget import Weight
from retinue.sandbox.build import PROGRAM
from retinue.sandbox.node_memory import read_limit_bytes
from retinue.sandbox.requests import Limits
from retinue.terms.record import Record

BOXES_PER_SHARD = 8000
"""A control socket each, and room for pipes: the usual hard limit of descriptors is some ten thousands."""
DEFAULT_COUNT = 8000
OVERCOMMIT = 8
"""Few sandboxes come near their limits at the same time; when they do, the watch over the node's memory steps in."""
_RESERVED_FDS = 200


class HostSettings(Record, frozen=True):
    """Everything the host needs to know."""

    store: str
    """Directory of the images, shared by all nodes."""
    base: str
    """Empty directory that the node space is mounted on; on the node's own disk."""
    logs: str
    """What squashfuse says."""
    limits: Limits
    """Of a sandbox whose caller says nothing."""
    budget: Weight
    shards: int
    queue: int = 30_000
    """Creates that wait at most."""
    queue_s: float = 600.0
    """How long one waits whose caller says nothing."""
    lease_s: float = 3600.0
    image_idle_s: float = 600.0
    service: str = "sandbox"
    index: int = 0
    node: str = ""
    incarnation: str = ""
    """`sandbox/0#2`; empty outside a run."""
    node_dir: str = ""
    ledger_path: str = ""
    sign_path: str = ""
    allow_degraded: bool = False
    program: str = str(PROGRAM)
    memory_min_bytes: int = 0
    """Less than this of the node's memory available, and the newest of the large sandboxes is ended."""
    unpack_to: str = ""
    """Where images are unpacked instead of mounted; empty: they are mounted."""

    @property
    def replica(self) -> str:
        """`sandbox/0`; empty outside a run."""
        return self.incarnation.partition("#")[0]

    @property
    def id_prefix(self) -> str:
        """What ids begin with."""
        return f"{self.service}.{self.index}-"


def count_shards(count: int, cpus: int) -> int:
    """Say how many shard processes hold so many sandboxes.

    Source: DESIGN.md section 8; fewer sandboxes each where the hard limit of descriptors is low.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = (
        BOXES_PER_SHARD if hard == resource.RLIM_INFINITY else min(BOXES_PER_SHARD, max(hard - _RESERVED_FDS, 1) // 2)
    )
    return max(cpus, -(-count // each), 1)


def build_budget(count: int | None, memory_bytes: int | None, process_count: int | None) -> Weight:
    """Fill in what was not said: the memory and the processes of this node, several times over."""
    return Weight(
        DEFAULT_COUNT if count is None else count,
        OVERCOMMIT * read_limit_bytes() if memory_bytes is None else memory_bytes,
        OVERCOMMIT * read_process_limit() if process_count is None else process_count,
    )


def read_process_limit() -> int:
    """How many processes the kernel lets this user have here, the smallest of its limits."""
    found = []
    for name in ("pid_max", "threads-max"):
        try:
            found.append(int(Path("/proc/sys/kernel", name).read_text()))
        except (OSError, ValueError):
            continue
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY:
        found.append(hard)
    return min(found, default=32768)


def count_cpus() -> int:
    """Count the CPUs this process may use."""
    return len(os.sched_getaffinity(0))
