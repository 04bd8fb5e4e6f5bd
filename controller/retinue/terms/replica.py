"""The life of one replica: phases, policy, events, actions, decision.

Every event carries the incarnation it is about; a stale one changes nothing.
`StopAsked` alone is about the replica, whatever incarnation it has.
"""

from enum import Enum

from retinue.terms.launch import StopSpec
from retinue.terms.record import Record


class Phase(str, Enum):
    """Where a replica is in its life. The last two are terminal."""

    PENDING = "pending"
    """Waits for its dependencies or for a node; nothing of it runs."""
    STARTING = "starting"
    """Launched, or being launched; not yet asked for readiness with success."""
    READY = "ready"
    """Published: callers are sent here."""
    UNREADY = "unready"
    """Runs, was started, is not published: readiness fails."""
    STOPPING = "stopping"
    """Told to end; ends in `stopped`, or in `backoff`/`starting` when it is to run again."""
    BACKOFF = "backoff"
    """Nothing runs; a timer will launch the next incarnation."""
    STOPPED = "stopped"
    """Ended as wanted: asked to stop, or exited with a success code."""
    FAILED = "failed"
    """Ended and will not be tried again by itself."""

    @property
    def is_terminal(self) -> bool:
        return self in (Phase.STOPPED, Phase.FAILED)


class Verdict(str, Enum):
    """What one probe answered."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    """Could not be asked; moves nothing."""


class OnExhausted(str, Enum):
    """What a spent restart budget means for the run."""

    DEGRADE = "degrade"
    """The run goes on without this replica."""
    HOLD = "hold"
    """Requests are held up to `run.hold` for an operator's restart; then the run fails."""
    FAIL_RUN = "fail_run"
    """The run ends, exit code 5."""


class RestartPolicy(Record, frozen=True):
    """When a replica that ended is launched again."""

    backoff_s: float = 10.0
    """First wait; doubles with each failure since the last stable period (kubelet's curve)."""
    backoff_max_s: float = 300.0
    jitter: float = 0.25
    """Up to this fraction is added, derived from (replica, incarnation): the core has no randomness."""
    limit: int = 5
    """Failures allowed since the last stable period; the next one exhausts."""
    stable_for_s: float = 600.0
    """Ready for this long without a break forgives all failures."""
    on_exhausted: OnExhausted = OnExhausted.DEGRADE
    success: tuple[int, ...] = ()
    """Exit codes that mean done: `stopped`, dependency condition `completed`."""
    no_restart: tuple[int, ...] = (3,)
    """Exit codes that mean trying again will not help: `failed` at once (uvicorn's 3)."""


class Policy(Record, frozen=True):
    """Everything `decide` needs to know about a replica that does not change."""

    restart: RestartPolicy = RestartPolicy()
    stop: StopSpec = StopSpec()
    startup_budget_s: float | None = None
    """None: no startup probe; else `StartupPassed` must come within this after `Started`."""
    has_readiness: bool = True
    """False: ready as soon as started (after the startup probe where there is one)."""
    is_movable: bool = False
    """May be placed on another node of its group when its node is lost."""


class Replica(Record, frozen=True):
    """All that the core remembers of one replica. Frozen; `decide` returns the next one."""

    id: str
    """`judge/0`."""
    policy: Policy = Policy()
    phase: Phase = Phase.PENDING
    incarnation: int = 0
    """Launches so far; 0 before the first."""
    failures: int = 0
    """Counted against `restart.limit` since the last stable period."""
    restarts: int = 0
    """Relaunches in all, for people and for the verdict."""
    is_started: bool = False
    """`Started` arrived for this incarnation: exec succeeded."""
    is_startup_passed: bool = False
    """The startup probe passed, or there is none and it is started."""
    wants_relaunch: bool = False
    """STOPPING only: launch again once the incarnation is gone."""
    is_failure: bool = False
    """STOPPING only: this stop counts as a failure (liveness, startup budget)."""
    kill_at_s: float | None = None
    """STOPPING only: loop time when the grace of the last `Stop` ends; a later stop is re-sent only if sooner."""
    is_exhausted: bool = False
    """FAILED because the budget was spent."""
    is_completed: bool = False
    """STOPPED because it exited with a success code."""
    since_s: float = 0.0
    """Loop time of the last phase change."""
    reason: str = ""
    """Why the last phase change happened, in words."""

    @property
    def is_there(self) -> bool:
        """Whether nobody needs to wait for it: published, or done as wanted."""
        return self.phase is Phase.READY or self.is_completed


# --- events: past tense -------------------------------------------------------


class Event(Record, frozen=True, tag_field="event"):
    """Something that happened to a replica."""


class DependenciesReady(Event, frozen=True, tag=True):
    """Everything this replica waits for is there."""

    incarnation: int


class Started(Event, frozen=True, tag=True):
    """exec succeeded; says nothing about readiness."""

    incarnation: int
    pid: int = 0
    """As the agent sees it."""
    host_pid: int = 0
    """As the node's root namespace sees it; 0 when unknown."""
    port: int | None = None


class LaunchRefused(Event, frozen=True, tag=True):
    """The incarnation could not be started; nothing of it runs."""

    incarnation: int
    cause: str
    retryable: bool = True


class StartupPassed(Event, frozen=True, tag=True):
    """The startup probe passed once."""

    incarnation: int


class StartupLost(Event, frozen=True, tag=True):
    """Its start cannot succeed any more: a process that it needs died, or it loads nothing and its budget is over."""

    incarnation: int
    cause: str = ""


class ReadinessChanged(Event, frozen=True, tag=True):
    """The readiness streak crossed a threshold."""

    incarnation: int
    is_ready: bool
    cause: str = ""


class LivenessLost(Event, frozen=True, tag=True):
    """The liveness streak crossed its threshold."""

    incarnation: int
    cause: str = ""


class Exited(Event, frozen=True, tag=True):
    """The incarnation is gone, tree and all. Exactly one per incarnation that started."""

    incarnation: int
    code: int | None = None
    """Exit code, or None when a signal ended it."""
    signal: int | None = None
    was_asked: bool = False
    """We had sent its stop signal."""
    is_quick: bool = False
    """Sooner than the okay delay after exec."""
    last_lines: str = ""
    """Last log lines: 20 lines, 2 KiB at most."""
    rung: str = ""
    """How its tree was ended: namespace | subreaper | group; empty when it went by itself."""
    is_killed_hard: bool = False
    """SIGKILL was needed."""
    escapees: int = 0
    """Descendants outside its process group that had to be ended."""
    left: tuple[int, ...] = ()
    """Host pids that would not die (D state); reported, not waited for."""


class TimerFired(Event, frozen=True, tag=True):
    """A timer that an action set ran out."""

    incarnation: int
    timer: str
    """`startup` | `backoff` | `stable` | `stop`."""


class StopAsked(Event, frozen=True, tag=True):
    """The replica is to end for good: teardown, drain, `down`."""

    reason: str
    grace_s: float | None = None
    """Shrinks the policy's grace to fit the deadline; None: the policy's own."""


class RestartAsked(Event, frozen=True, tag=True):
    """An operator (or a dependency's restart) wants a new incarnation; forgives all failures.

    The only event that leaves a terminal phase.
    """

    incarnation: int
    reason: str = "asked by operator"


class NodeLost(Event, frozen=True, tag=True):
    """The node is gone, and with it (by the keeper's namespace) the incarnation."""

    incarnation: int
    cause: str = ""


AnyEvent = (
    DependenciesReady
    | Started
    | LaunchRefused
    | StartupPassed
    | StartupLost
    | ReadinessChanged
    | LivenessLost
    | Exited
    | TimerFired
    | StopAsked
    | RestartAsked
    | NodeLost
)


# --- actions: imperatives -----------------------------------------------------


class Action(Record, frozen=True, tag_field="action"):
    """Something `supervise` is told to do."""


class Launch(Action, frozen=True, tag=True):
    """Start this incarnation; answered by `Started` or `LaunchRefused`."""

    incarnation: int


class Stop(Action, frozen=True, tag=True):
    """Run the stop ladder on this incarnation; answered by exactly one `Exited`."""

    incarnation: int
    signal: str
    grace_s: float
    reason: str


class Publish(Action, frozen=True, tag=True):
    """Send callers here."""

    incarnation: int


class Withdraw(Action, frozen=True, tag=True):
    """Send no new request here."""

    incarnation: int


class SetTimer(Action, frozen=True, tag=True):
    """Answer with `TimerFired(incarnation, timer)` after `after_s`; replaces a timer of that name."""

    incarnation: int
    timer: str
    after_s: float


class CancelTimer(Action, frozen=True, tag=True):
    """Forget the timer of that name; unknown names are fine."""

    timer: str


class PlaceAgain(Action, frozen=True, tag=True):
    """Find another node of the group; answered by `DependenciesReady` or `LaunchRefused(retryable=False)`."""

    incarnation: int


class Exhausted(Action, frozen=True, tag=True):
    """The replica will not be tried again; apply `on_exhausted` to the run."""

    on_exhausted: OnExhausted


AnyAction = Launch | Stop | Publish | Withdraw | SetTimer | CancelTimer | PlaceAgain | Exhausted


class Decision(Record, frozen=True):
    """What `decide` answers: the next replica, what to do, and why."""

    replica: Replica
    actions: tuple[AnyAction, ...]
    reason: str
    """In words, for the journal; says so when the event changed nothing."""
