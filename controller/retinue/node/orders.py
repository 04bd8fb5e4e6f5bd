"""What the agent and its keeper say to each other on one node.

An AF_UNIX SOCK_SEQPACKET socketpair that the keeper makes for every agent it
starts: one JSON record per packet, file descriptors beside it (SCM_RIGHTS).
Anything that may be long (environment, argv, the launch spec) travels in a
sealed memfd, so that no packet nears the socket's size limit.

The keeper is the parent of every service from its birth: an agent that dies
between fork and its own note of the pid loses nothing.
"""

from retinue.terms.egress import Denied, EgressRule
from retinue.terms.record import Record

PROBE_MARK = "?"
"""Between replica and probe in the name the keeper knows an exec probe by; no replica id holds it."""


class Order(Record, frozen=True, tag_field="o"):
    """One packet."""


class SpawnBody(Record, frozen=True):
    """In the memfd of a `Spawn`: what the keeper executes, and what it keeps for the next agent."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    note: str = ""
    """Opaque to the keeper: the agent's own JSON (LaunchSpec, port, ...), given back on re-adoption."""
    egress: EgressRule | None = None
    """None: not guarded. Names in it are addresses by now."""


# --- agent -> keeper ----------------------------------------------------------------


class Spawn(Order, frozen=True, tag=True):
    """Fork and exec one incarnation in a session of its own.

    Descriptors: [memfd of SpawnBody, stdout and stderr of the child, *held*], where `held` names
    the rest in order. The keeper holds `held` until `Release`, from before exec.
    """

    replica: str
    incarnation: int
    held: tuple[str, ...] = ()
    """`log` (read end of the log pipe), `port` (the reservation), ..."""


class Signal(Order, frozen=True, tag=True):
    """Signal the incarnation's process group; only while its leader is not reaped, so no pid is reused."""

    replica: str
    incarnation: int
    number: int


class Release(Order, frozen=True, tag=True):
    """The incarnation is over and reported: forget it and close what is held for it."""

    replica: str
    incarnation: int
    names: tuple[str, ...] = ()
    """Empty: all, and forget the incarnation. Else close only these (a port reservation that served its purpose)."""


class Bind(Order, frozen=True, tag=True):
    """Bind and hold 127.0.0.1:port for the gateway, and start the gateway on it."""

    port: int
    wants_hop: bool = False
    """Hold also a port of the kernel's choice on all addresses, where the gateways of other nodes call."""


class AgentBeat(Order, frozen=True, tag=True):
    """Every second; the keeper kills and restarts an agent it has not heard for 5 s."""

    is_hung: bool = False
    """The run directory's file system hangs: what has a file open there may not be killed by anybody."""


class TellTasks(Order, frozen=True, tag=True):
    """Have the outer process signal the trainer's Slurm tasks on this node."""

    signal: str
    spared_step: str


class AskGpus(Order, frozen=True, tag=True):
    """Have the outer process ask who has memory of which GPU."""


class TellAddresses(Order, frozen=True, tag=True):
    """Addresses of the allocation's nodes, which guarded services may reach; what was told before stays."""

    addresses: tuple[str, ...]


class End(Order, frozen=True, tag=True):
    """End the node: kill all, leave nothing, exit."""

    reason: str


ToKeeper = Spawn | Signal | Release | Bind | AgentBeat | TellTasks | AskGpus | TellAddresses | End


# --- keeper -> agent ----------------------------------------------------------------


class Kept(Record, frozen=True):
    """One incarnation as the keeper knows it."""

    replica: str
    incarnation: int
    pid: int
    host_pid: int
    is_alive: bool
    code: int | None = None
    signal: int | None = None
    held: tuple[str, ...] = ()
    """Names of descriptors that follow in `Handover` packets."""


class Inventory(Order, frozen=True, tag=True):
    """First packet to every agent; `Handover` packets for each kept incarnation follow, then `InventoryDone`."""

    starts: int
    """1 for the first agent of this node."""
    kept: tuple[Kept, ...]
    gateway_port: int | None
    hop_port: int | None
    keeper_pid: int
    keeper_host_pid: int
    outer_pid: int
    has_namespace: bool
    weaker: str
    agent_host_pid: int = 0
    """Of the agent this is sent to; 0 when the outer process did not answer."""
    guard_off: str = ""
    """Why no service can be guarded on this node; empty when they can."""


class Handover(Order, frozen=True, tag=True):
    """Descriptors of one kept incarnation: [memfd of SpawnBody, *held* in the order of `Kept.held`]."""

    replica: str
    incarnation: int


class InventoryDone(Order, frozen=True, tag=True):
    """The agent knows all that the keeper holds."""


class Spawned(Order, frozen=True, tag=True):
    """exec succeeded."""

    replica: str
    incarnation: int
    pid: int
    host_pid: int = 0


class SpawnRefused(Order, frozen=True, tag=True):
    """fork or exec failed; nothing runs, nothing is held."""

    replica: str
    incarnation: int
    errno: int
    cause: str


class Reaped(Order, frozen=True, tag=True):
    """The incarnation's leader ended; its descendants may live on."""

    replica: str
    incarnation: int
    code: int | None = None
    signal: int | None = None


class Bound(Order, frozen=True, tag=True):
    """Answer to `Bind`."""

    port: int
    is_bound: bool
    holder: str = ""
    hop_port: int | None = None


class RoleRestarted(Order, frozen=True, tag=True):
    """The keeper started a role again: `agent` (told to the new one), `gateway` or `egress supervisor`."""

    role: str
    starts: int
    reason: str


class TasksTold(Order, frozen=True, tag=True):
    """Answer to `TellTasks`, when it comes; as `channel.messages.TasksSeen`."""

    signal: str
    told: int
    live: int


class GpusTold(Order, frozen=True, tag=True):
    """Answer to `AskGpus`, when it comes: what nvidia-smi said; empty when there is none."""

    text: str


class DeniedSeen(Order, frozen=True, tag=True):
    """What services were denied: lines with their counts so far; a new agent is told all of them."""

    lines: tuple[Denied, ...]


ToAgent = (
    Inventory
    | Handover
    | InventoryDone
    | Spawned
    | SpawnRefused
    | Reaped
    | Bound
    | RoleRestarted
    | TasksTold
    | GpusTold
    | DeniedSeen
)
