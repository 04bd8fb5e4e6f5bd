"""The run's own small state: what a restarted controller must know besides its replicas."""

from enum import Enum

from retinue.supervise.ending import Cause, Ending
from retinue.terms.record import Record


class RunPhase(str, Enum):
    """Where the run is."""

    JOINING = "joining"
    """Keepers start; agents dial in; gateways bind."""
    STARTING = "starting"
    """Services start; the trainer waits."""
    RUNNING = "running"
    """All were ready once; the trainer runs (or `up` has returned)."""
    ENDING = "ending"
    """Services are stopped; nodes are told to end."""
    OVER = "over"
    """The verdict is with the stub; nothing more is decided."""


class TrainerState(str, Enum):
    """What the stub does with the user's command."""

    NONE = "none"
    """Not started yet, or there is none."""
    ASKED = "asked"
    """The stub was told to start it."""
    RUNNING = "running"
    """Its first process lives."""
    ENDED = "ended"
    """Its first process ended, or could not be started."""


class TrainerStop(Record, frozen=True):
    """How far the stopping of the trainer is."""

    signal: str
    """What it is told, without SIG; empty when Slurm has told it."""
    began_s: float
    kill_s: float
    """Loop time at which its grace is over."""
    has_heard: bool = False
    """Its first process has the stop signal: from us, from the terminal, or with all of the job."""
    has_tasks: bool = False
    """Slurm tasks of it were found on our nodes; then these are told, and its first process is not."""
    is_prodded: bool = False
    """Its first process outlived its tasks and was signalled for that."""
    is_killing: bool = False
    """The grace is over."""


class RunState(Record, frozen=True):
    """Saved on every change."""

    phase: RunPhase = RunPhase.JOINING
    ending: Ending | None = None
    """Set once: the first cause. The run is stopping from then on."""
    urgency: int = 0
    """0: ordered stop with full grace; 1: an impatient second signal, two seconds each; 2: kill."""
    trainer: TrainerState = TrainerState.NONE
    trainer_pid: int = 0
    trainer_code: int | None = None
    trainer_signal: int | None = None
    trainer_stop: TrainerStop | None = None
    """Set when the trainer is told to stop."""
    signalled_utc: float | None = None
    """When Slurm signalled every process of the job: it kills what is left `plan.kill_wait_s` later."""
    has_spared_batch: bool = False
    """The batch script was left out: it is the notice before a preemption, `plan.preempt_grace_s` ahead of the end."""
    gateway_port: int | None = None
    is_launched: bool = False
    """The stub was told to start the nodes' launch."""
    has_launch_ended: bool = False

    def ending_is(self, cause: Cause) -> bool:
        """Whether this is what ended the run."""
        return self.ending is not None and self.ending.cause is cause
