"""What can happen to a run: the one event queue carries these and nothing else.

Things that happen to a replica are `retinue.terms.replica` events; here they
arrive inside `AgentSaid(Report(...))` or as a `ReplicaTimer`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from retinue.channel.messages import Answer, Ask, FromAgent, Hello
from retinue.terms.replica import TimerFired


@dataclass(frozen=True, slots=True)
class AgentJoined:
    """A node's agent connected (again) and told its full state."""

    node: str
    hello: Hello


@dataclass(frozen=True, slots=True)
class AgentSaid:
    """One message of a joined agent."""

    node: str
    message: FromAgent


@dataclass(frozen=True, slots=True)
class AgentLeft:
    """A node's connection closed; it may well come back."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node is silent or its launch ended: nothing of ours runs there any more."""

    node: str
    cause: str


@dataclass(frozen=True, slots=True)
class ChildSeen:
    """A child of the stub, as a controller that was not there is told of it."""

    pid: int
    is_running: bool
    is_started: bool = True
    """exec succeeded."""
    code: int | None = None
    signal: int | None = None
    errno: int | None = None
    """Set when exec failed."""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class StubHello:
    """First word of the stub to this controller: what already runs."""

    starts: int
    launch: ChildSeen | None = None
    trainer: ChildSeen | None = None
    stops: tuple[dict[str, Any], ...] = ()
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StubGone:
    """The stub died: this run has nobody to exit for it."""


@dataclass(frozen=True, slots=True)
class LaunchExited:
    """The launch of all nodes ended."""

    code: int | None
    signal: int | None
    cause: str = ""
    """Why it could not even be executed."""


@dataclass(frozen=True, slots=True)
class LaunchSaid:
    """A line that the launch printed and that is no node's report."""

    line: str


@dataclass(frozen=True, slots=True)
class TrainerStarted:
    """exec of the trainer succeeded."""

    pid: int


@dataclass(frozen=True, slots=True)
class TrainerRefused:
    """The trainer could not be executed."""

    errno: int
    cause: str


@dataclass(frozen=True, slots=True)
class TrainerExited:
    """The trainer's first process ended."""

    code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class StopSignal:
    """Somebody signalled the stub; `count` is how often so far."""

    name: str
    count: int
    is_from_terminal: bool = False


@dataclass(frozen=True, slots=True)
class TermHeard:
    """This process was sent TERM. Nobody does that to it alone: Slurm signals every process of a job or step."""


@dataclass(frozen=True, slots=True)
class FencedOff:
    """A newer attempt owns the run directory: this one must end."""

    by: str


@dataclass(frozen=True, slots=True)
class NodeReported:
    """The outer process of a node ended and said what it left behind."""

    node: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OperatorAsked:
    """An operator's command; `reply` is called exactly once."""

    ask: Ask
    reply: Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class ReplicaTimer:
    """A replica's timer ran out."""

    replica: str
    fired: TimerFired


@dataclass(frozen=True, slots=True)
class RunTimer:
    """A timer of the run itself ran out: `join`, `deadline`, `trainer_kill`, `end`, `hold:<service>`."""

    name: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Once a second: time for snapshots and for asking who is silent."""

    lag_s: float


Happening = (
    AgentJoined
    | AgentSaid
    | AgentLeft
    | NodeGone
    | StubHello
    | StubGone
    | LaunchExited
    | LaunchSaid
    | TrainerStarted
    | TrainerRefused
    | TrainerExited
    | StopSignal
    | TermHeard
    | FencedOff
    | NodeReported
    | OperatorAsked
    | ReplicaTimer
    | RunTimer
    | Ticked
)
