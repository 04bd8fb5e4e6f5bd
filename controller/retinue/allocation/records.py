"""What was granted: nodes, devices, deadline. Values only."""

from retinue.terms.record import Record


class Node(Record, frozen=True):
    """One host of the allocation."""

    name: str
    cpus: int
    memory_mib: int
    """0 when unknown."""
    gpus: int = 0
    gpu_uuids: tuple[str, ...] = ()
    """In index order; empty where there are none or nobody can say."""


class Allocation(Record, frozen=True):
    """The grant this run lives in. Local when there is no Slurm job."""

    nodes: tuple[Node, ...]
    """In the order of the node list; the batch host is first."""
    source: str = "local"
    """`local` | `slurm` | `described` (from --nodes)."""
    job_id: str | None = None
    restart_count: int = 0
    """SLURM_RESTART_COUNT; the attempt number."""
    end_utc: float | None = None
    """SLURM_JOB_END_TIME, epoch seconds; None when the environment does not say."""
    batch_host: str = ""
    """Node the controller runs on."""
