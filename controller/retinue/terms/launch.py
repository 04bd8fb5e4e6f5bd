"""What an agent needs to know to run one incarnation of a replica."""

from enum import Enum

from retinue.terms.egress import EgressRule
from retinue.terms.record import Record


class ProbeKind(str, Enum):
    """Kubernetes' three probes, with Kubernetes' meanings."""

    STARTUP = "startup"
    """Gates the other two until it passes once; its failure ends the incarnation."""
    READINESS = "readiness"
    """Decides whether callers are sent here; never restarts anything."""
    LIVENESS = "liveness"
    """Its failure restarts the replica; never moves traffic by itself."""


class ProbeSpec(Record, frozen=True):
    """How one probe asks, and how many equal answers in a row count."""

    kind: ProbeKind
    http_path: str | None = None
    """Ask `GET http://host:port<path>`; 200-399 passes. None: not an HTTP probe."""
    tcp: bool = False
    """Connect and close; a completed connect passes."""
    exec_argv: tuple[str, ...] = ()
    """Run this in the replica's environment; exit code 0 passes."""
    progress: str = ""
    """Liveness only: `vllm` | `sglang` | `llamacpp`, whose metrics say whether work gets on. Empty: no such probe."""
    stall_s: float = 60.0
    """Progress only: work without a token for so long is a failure."""
    port: int | None = None
    """None: the replica's own port."""
    period_s: float = 10.0
    timeout_s: float = 1.0
    failures: int = 3
    """Failures in a row that change the verdict."""
    successes: int = 1
    """Successes in a row that change the verdict (startup and liveness: always 1)."""
    initial_delay_s: float = 0.0
    budget_s: float | None = None
    """Startup only: how long until the incarnation is given up; None: failures x period."""
    budget_max_s: float | None = None
    """Startup only: the budget goes on so long while loading makes progress; None: it does not go on."""


def compute_budget_s(probe: ProbeSpec) -> float:
    """Compute how long a start may take, without what its progress adds.

    Units:  seconds from exec.
    Source: without a budget, Kubernetes' startup probe.
    """
    return probe.budget_s or probe.initial_delay_s + probe.failures * probe.period_s


class StopSpec(Record, frozen=True):
    """How a replica is asked to end before it is killed."""

    signal: str = "TERM"
    """Name without SIG."""
    grace_s: float = 30.0
    """Wait between the signal and SIGKILL."""


class LaunchSpec(Record, frozen=True):
    """One incarnation, complete: what an agent starts, probes, captures and stops."""

    replica: str
    """`judge/0`."""
    service: str
    index: int
    incarnation: int
    """1 for the first launch; every message about this launch carries it."""
    argv: tuple[str, ...]
    """Still holds the placeholders that only the node knows: {port} {host} {node_dir}."""
    env: dict[str, str] = {}
    """Additions; the agent starts from its own scrubbed environment. Placeholders as in argv."""
    secrets: dict[str, str] = {}
    """Environment name -> value, already resolved by the controller; redacted in logs."""
    secret_files: dict[str, str] = {}
    """Environment name -> path read on the node; redacted in logs."""
    token_env: tuple[str, ...] = ()
    """Environment names that get the run's token, which the node has; redacted in logs."""
    cwd: str | None = None
    """None: the directory where the run was started."""
    wants_port: bool = False
    wants_inner_port: bool = False
    """{inner_port} is used: the first of a block of ports for what it talks to itself by."""
    port_reuse: bool = True
    """Keep a bound, not listening reservation until the replica listens."""
    listen: str = "loopback"
    """`loopback` | `node`: which address {host} is."""
    probes: tuple[ProbeSpec, ...] = ()
    stop: StopSpec = StopSpec()
    okay_delay_s: float = 1.0
    """An exit sooner than this after exec is reported with its last lines as a failed start."""
    log_path: str = ""
    """`<attempt dir>/logs/<service>.<k>/launch-<n>.log`."""
    gpus: tuple[int, ...] = ()
    """Indices of what the agent sees; empty: CUDA_VISIBLE_DEVICES is set to empty."""
    shares_gpus: bool = False
    """Others may have memory of its GPUs; else a relaunch waits until nobody has."""
    keep_env: tuple[str, ...] = ()
    """Names (fnmatch patterns) that hygiene would drop and this service keeps."""
    egress: EgressRule | None = None
    """What it may reach beyond the allocation; None: it is not guarded."""
