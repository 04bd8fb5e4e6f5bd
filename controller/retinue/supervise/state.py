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
    is_trainer_told: bool = False
    """The trainer was sent its stop signal (or had it from the terminal)."""
    gateway_port: int | None = None
    is_launched: bool = False
    """The stub was told to start the nodes' launch."""
    has_launch_ended: bool = False

    def ending_is(self, cause: Cause) -> bool:
        """Whether this is what ended the run."""
        return self.ending is not None and self.ending.cause is cause
