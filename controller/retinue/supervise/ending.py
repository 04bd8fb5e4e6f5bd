"""How a run ends: the first cause, and the exit code that follows from it. Pure."""

from enum import Enum

from retinue.terms.record import Record


class Cause(str, Enum):
    """`ended_by` in the verdict: who ended the run first."""

    TRAINER = "trainer"
    """The trainer's first process exited."""
    SIGNAL = "signal"
    """Somebody signalled the stub: Ctrl-C, `scancel`, a time limit's warning."""
    DEADLINE = "deadline"
    """Our own clock: the allocation ends within `run.drain`."""
    TIMEOUT = "timeout"
    """Slurm's time limit, before our own clock: a stop by signal, and Slurm said why."""
    PREEMPTED = "preempted"
    """Another job takes the nodes: a stop by signal, and Slurm said why."""
    OPERATOR = "operator"
    """`retinue down`."""
    NOT_READY = "not_ready"
    """The services could not be made ready; the trainer was never started."""
    FAIL_RUN = "fail_run"
    """A service with `on_exhausted: fail_run` (or `hold`, after run.hold) is beyond its restart budget."""
    NODE_LOST = "node_lost"
    """The last node, or one the trainer runs on, was lost."""
    FENCED = "fenced"
    """A newer attempt took the run directory over."""
    TRAINER_REFUSED = "trainer_refused"
    """The trainer's command cannot be executed or found."""
    STUB_LOST = "stub_lost"
    """The stub was killed."""
    CONTROLLER_LOST = "controller_lost"
    """The controller died more often than the stub restarts it (said by the stub)."""
    INTERNAL = "internal"
    """An error of ours."""


class Ending(Record, frozen=True):
    """The first cause; later ones change nothing but the urgency."""

    cause: Cause
    text: str
    signal: int | None = None
    """SIGNAL: its number."""
    refused_code: int = 0
    """TRAINER_REFUSED: 126 or 127."""


def find_exit_code(ending: Ending, trainer_started: bool, code: int | None, signal: int | None) -> int:
    """Say what the whole run exits with.

    Shape: once the trainer was started its own code (128+n by signal), except 5 when the run was failed under it;
    before, the code of what prevented it.
    Source: DESIGN.md section 5.
    """
    if ending.cause in (Cause.FAIL_RUN, Cause.NODE_LOST, Cause.NOT_READY, Cause.CONTROLLER_LOST, Cause.FENCED):
        return 5
    if trainer_started:
        if code is not None:
            return code
        return 128 + signal if signal is not None else 70
    if ending.cause is Cause.TRAINER_REFUSED:
        return ending.refused_code
    if ending.cause in (Cause.SIGNAL, Cause.TIMEOUT, Cause.PREEMPTED):
        return 128 + (ending.signal or 15)
    if ending.cause is Cause.OPERATOR:
        return 0
    if ending.cause is Cause.DEADLINE:
        return 5
    return 70
