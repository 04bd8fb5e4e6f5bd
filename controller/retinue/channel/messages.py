"""What controller, agents and operators say to each other.

One tagged union per direction. Length-prefixed JSON frames over TLS; a frame
that does not decode closes the connection (it is a bug or a stranger).
"""

from typing import Any

from retinue.terms.calls import CallRules
from retinue.terms.egress import Denied
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import Record
from retinue.terms.replica import AnyEvent, Exited


class Message(Record, frozen=True, tag_field="m"):
    """One frame."""


# --- agent -> controller --------------------------------------------------------


class Observed(Record, frozen=True):
    """What an agent knows of one incarnation; part of the full state it sends on connect."""

    replica: str
    incarnation: int
    is_running: bool
    pid: int = 0
    host_pid: int = 0
    port: int | None = None
    is_startup_passed: bool = False
    is_ready: bool = False
    """Last readiness the streak settled on."""
    is_stopping: bool = False
    exited: Exited | None = None
    """Set when it is gone; kept until a newer incarnation is launched."""


class Hello(Message, frozen=True, tag=True):
    """First frame of an agent, on every connection."""

    node: str
    version: str
    nonce: str
    """Read from `<attempt dir>/nonce`: proves that the run directory is the same one."""
    python: str = ""
    agent_starts: int = 1
    pid: int = 0
    """The agent's, in its own namespace."""
    host_pid: int = 0
    keeper_host_pid: int = 0
    outer_pid: int = 0
    has_namespace: bool = True
    weaker: str = ""
    """Why a weaker rung is used; empty when none."""
    gateway_port: int | None = None
    """Port the keeper holds for the run; None before `BindGateway`."""
    hop_port: int | None = None
    """Where other nodes' gateways call this one; None before `BindGateway`, and in a run of one node."""
    addresses: tuple[str, ...] = ()
    """By which other nodes may reach this one, never loopback. The server puts first what the connection came from."""
    listen_host: str = "127.0.0.1"
    """What {host} is to a service that says `listen: node`."""
    observed: tuple[Observed, ...] = ()
    guard_off: str = ""
    """Why no service can be guarded on this node; empty when they can."""


class Beat(Message, frozen=True, tag=True):
    """Every 2 s."""

    loop_lag_s: float = 0.0
    load_per_cpu: float = 0.0
    memory_free_mib: int = 0
    log_lines_lost: int = 0
    """Since the agent started; log lines dropped because the file system was slow or full."""
    journal_stuck_s: float = 0.0
    """How long the agent's oldest unwritten log line has waited."""
    failing: dict[str, str] = {}
    """Replica -> why its probes do not pass, for those that are not ready; at most 64."""


class Report(Message, frozen=True, tag=True):
    """Something happened to one replica."""

    replica: str
    event: AnyEvent


class GatewayBound(Message, frozen=True, tag=True):
    """Answer to `BindGateway`."""

    port: int
    is_bound: bool
    holder: str = ""
    """Who has the port when it is refused, as far as the node can tell."""
    hop_port: int | None = None
    """As in `Hello`."""


class GatewayFacts(Message, frozen=True, tag=True):
    """What the node's gateway counted, and whom it dropped by itself."""

    requests: int = 0
    held: int = 0
    """Waiting right now."""
    held_total: int = 0
    """Had to wait, so far."""
    failed: int = 0
    """Requests that ended in a typed error of ours."""
    retried: int = 0
    in_flight: dict[str, int] = {}
    """Service -> requests in flight."""
    dropped: tuple[str, ...] = ()
    """Replica ids the gateway stopped using after a streak of failed requests."""


class NodeEnding(Message, frozen=True, tag=True):
    """The agent ends its node now (told to, or an orphan)."""

    reason: str


class NodeNote(Message, frozen=True, tag=True):
    """Something on the node that people should read: a restarted agent or gateway, a stuck disk."""

    what: str
    reason: str
    role: str = ""
    """`agent` | `gateway` | `egress supervisor` | `keeper` | `security` | ``."""


class TasksSeen(Message, frozen=True, tag=True):
    """Answer to `SignalTasks`."""

    signal: str
    told: int
    """Tasks of the trainer on this node that have had this signal so far, ended ones included."""
    live: int
    """Tasks that run."""


class NodeFacts(Message, frozen=True, tag=True):
    """Answer to `AskFacts`."""

    question: int
    facts: dict[str, Any]
    """`doctor.records.Facts`, as plain values; empty when they could not be found."""
    error: str
    came_utc: float
    """When the question came and when this was said, by the node's own clock."""
    gave_utc: float


class EgressDenied(Message, frozen=True, tag=True):
    """Destinations that services of this node were refused, with their counts so far."""

    lines: tuple[Denied, ...]


FromAgent = (
    Hello | Beat | Report | GatewayBound | GatewayFacts | NodeEnding | NodeNote | TasksSeen | NodeFacts | EgressDenied
)


# --- controller -> agent ---------------------------------------------------------


class Welcome(Message, frozen=True, tag=True):
    """Answer to `Hello`."""

    run_id: str
    attempt: int
    orphan_grace_s: float


class Refused(Message, frozen=True, tag=True):
    """Answer to a `Hello` that does not belong here; the agent ends its node."""

    reason: str


class BindGateway(Message, frozen=True, tag=True):
    """Bind 127.0.0.1:port and start the gateway there."""

    port: int


class LaunchOrder(Message, frozen=True, tag=True):
    """Start one incarnation."""

    spec: LaunchSpec


class StopOrder(Message, frozen=True, tag=True):
    """Run the stop ladder on one incarnation."""

    replica: str
    incarnation: int
    signal: str
    grace_s: float
    reason: str


class Backend(Record, frozen=True):
    """One published replica as a gateway sees it."""

    replica: str
    incarnation: int
    node: str
    host: str
    port: int


class Gone(Record, frozen=True):
    """A replica that ran before and takes no requests now."""

    replica: str
    node: str
    cause: str


class Route(Record, frozen=True):
    """One service as a gateway sees it."""

    service: str
    backends: tuple[Backend, ...]
    is_per_node: bool = False
    hold_s: float = 900.0
    """0: answer the typed error at once."""
    unready_since_utc: float | None = None
    cause: str = ""
    """Why there is no backend, for the typed error."""
    rules: CallRules = CallRules()
    wants_token: bool = False
    """Its replicas take the run's token for their API key: it is sent with every request, whatever key came."""
    is_sandbox: bool = False
    """Its replicas have sandboxes, and a request about one goes to the replica that has it, or nowhere."""
    unready: tuple[Backend, ...] = ()
    """Sandboxes only: replicas that run and take no new work; what they have is still served."""
    gone: tuple[Gone, ...] = ()
    """Sandboxes only: what became of the others."""


class Peer(Record, frozen=True):
    """The gateway of another node, for the backends there."""

    node: str
    addresses: tuple[str, ...]
    """Literal, the likeliest first."""
    hop_port: int


class Membership(Message, frozen=True, tag=True):
    """The full set of routes; a lower epoch than the last one is ignored."""

    epoch: int
    routes: tuple[Route, ...]
    peers: tuple[Peer, ...] = ()
    """For the other nodes that the routes name. One that the controller does not know (it was started again, the
    node's agent is not back) is left out: what the gateway knew of it still holds."""
    hidden: tuple[Backend, ...] = ()
    """Own node's replicas that are in none of its routes: only other nodes' gateways ask for them."""


class EndNode(Message, frozen=True, tag=True):
    """Everything on the node is stopped or about to be killed; leave nothing."""

    reason: str


class SignalTasks(Message, frozen=True, tag=True):
    """Signal every Slurm task of the trainer on the node that has not had this signal yet; asked again and again."""

    signal: str
    """Without SIG. Empty: only count them."""
    spared_step: str = ""
    """A step of the job that is not the trainer's: the one that the run was started in, where there is one."""


class AskFacts(Message, frozen=True, tag=True):
    """Try what this node can do (`retinue doctor`), and say what was found."""

    question: int


class ReachAddresses(Message, frozen=True, tag=True):
    """Addresses of the run's nodes, which guarded services may reach; what was told before stays."""

    addresses: tuple[str, ...]


FromController = (
    Welcome
    | Refused
    | BindGateway
    | LaunchOrder
    | StopOrder
    | Membership
    | EndNode
    | SignalTasks
    | AskFacts
    | ReachAddresses
)


# --- operator <-> controller -----------------------------------------------------


class Ask(Message, frozen=True, tag=True):
    """One request of an operator's command."""

    command: str
    """`restart` | `down` | `status` | `drain` | `doctor`."""
    target: str = ""
    """`judge`, `judge/0`, a node name, or empty."""


class Answer(Message, frozen=True, tag=True):
    """The one answer."""

    is_done: bool
    text: str


FromOperator = Ask
