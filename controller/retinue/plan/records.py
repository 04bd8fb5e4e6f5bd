"""The plan: who runs where, in which order, and why. Values only.

Written to `plan.json` and read back by the controller, so it is complete: the
controller never needs the manifest again.
"""

from retinue.allocation.records import Allocation
from retinue.terms.calls import CallRules
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import Record
from retinue.terms.replica import OnExhausted, Policy


class Dependency(Record, frozen=True):
    """One edge of `depends_on`."""

    service: str
    condition: str
    """`started` | `ready` | `completed`."""
    is_required: bool = True
    """False: a dependency that failed for good does not hold this service back."""
    wants_restart: bool = False
    """True: when the dependency gets a new incarnation, this service is restarted too."""


class ReplicaPlan(Record, frozen=True):
    """One replica: its place and its launch, but for the incarnation number."""

    id: str
    service: str
    index: int
    node: str
    group: str
    launch: LaunchSpec
    """With incarnation 0; placeholders known to the plan are already filled in."""
    policy: Policy
    gpus: tuple[int, ...] = ()
    why: str = ""
    """One sentence: why this node."""
    cpus: int = 0
    """Counted by placement; 0: not asked for."""
    memory_mib: int = 0
    """Counted by placement; 0: not asked for."""
    shares_gpus: bool = False
    """Its devices may also be given to other replicas that say so."""
    wants_pack: bool = False
    """False: spread."""
    unplaced: LaunchSpec | None = None
    """`launch` with {node} still to be filled in, for another place; None: it does not mention its node."""


class Egress(Record, frozen=True):
    """What a service may reach; the default is the allocation only."""

    is_on: bool = True
    udp: str = "none"
    """`none` | `loopback` | `full`."""
    allow: tuple[str, ...] = ()
    """`CIDR:PORT`, `CIDR`, or `HOST:PORT`."""


class ServicePlan(Record, frozen=True):
    """One service of the manifest."""

    name: str
    kind: str
    """`judge` | `retrieval` | `user-simulator` | `checks` | `sandbox` | `command`."""
    replicas: tuple[str, ...]
    """Replica ids in order."""
    min_ready: int
    """Ready replicas that make the service ready (gates dependants and the trainer)."""
    has_port: bool
    is_http: bool = True
    """False: a TCP service, whose address is in endpoints.json without a stability promise."""
    is_per_node: bool = False
    """Gateways prefer the own node's replica."""
    depends_on: tuple[Dependency, ...] = ()
    on_exhausted: OnExhausted = OnExhausted.DEGRADE
    egress: Egress = Egress()
    guard: str = "on"
    """`on` | `off` (by the manifest) | `exempt` (its workloads have no network at all)."""
    env_secrets: tuple[tuple[str, str], ...] = ()
    """(environment name, caller's environment name) for `env:NAME` references; no values."""
    calls: CallRules = CallRules()
    """How gateways treat its callers."""
    wants_token: bool = False
    """Gateways send the run's token with every request: its replicas know it as their API key."""
    start_lane: int = 0
    """Services of lane n wait for nothing in lanes > n."""


class GroupPlan(Record, frozen=True):
    """A named slice of the allocation's nodes."""

    name: str
    nodes: tuple[str, ...]
    """In allocation order."""


class TrainerPlan(Record, frozen=True):
    """How the user's command is run."""

    group: str | None
    """None: no `trainer.on`; all nodes."""
    argv: tuple[str, ...] = ()
    """Empty: `up`, no trainer. Placeholders {group.nodelist} {group.count} filled in."""
    stop_signal: str = "TERM"
    grace_s: float = 60.0
    egress: Egress = Egress(is_on=False)


class Plan(Record, frozen=True):
    """Everything the controller needs."""

    name: str
    allocation: Allocation
    groups: tuple[GroupPlan, ...]
    services: tuple[ServicePlan, ...]
    """In manifest order."""
    replicas: tuple[ReplicaPlan, ...]
    """In manifest order."""
    trainer: TrainerPlan
    start_lanes: tuple[tuple[str, ...], ...] = ()
    """Services that may start together; lane n+1 depends on lanes <= n. For people: the run follows `depends_on`."""
    stop_lanes: tuple[tuple[str, ...], ...] = ()
    """Callers before what they call: the reverse of start_lanes."""
    drain_s: float = 120.0
    """How long before the deadline the run begins to stop."""
    hold_s: float = 900.0
    """How long a request waits while nothing is ready."""
    wants_namespace: bool = True
    """`node: {namespace: off}` is False."""
    kill_wait_s: float = 30.0
    """In Slurm: from the TERM to every process of the job (scancel, time limit) to its KILL, and no earlier."""
    preempt_grace_s: float = 0.0
    """In Slurm: what the partition gives a preempted job, from the TERM to its steps until it is ended as above."""
    orphan_grace_s: float = 60.0
    join_timeout_s: float = 120.0
    warnings: tuple[str, ...] = ()
    """Printed by plan and run, and kept in the verdict."""

    @property
    def survives_node_loss(self) -> bool:
        """Say whether there is a node whose loss does not end the run: one that the trainer does not run on."""
        trainer = next((group.nodes for group in self.groups if group.name == self.trainer.group), None)
        count = len(self.allocation.nodes)
        return count > 1 and (len(trainer) < count if trainer is not None else not self.trainer.argv)
