"""What a TERM to every process of the job explains: ends that would else look like failures of ours.

`scancel`, the time limit and a preemption send TERM to services, nodes, trainer and stub alike, and which of their
ends is heard of first is chance. An end by a TERM that nobody of us sent is therefore held back for a moment; when
the stub tells of the same TERM it belongs to the stop: nothing is launched again, and it is not the first cause.
"""

import signal as signals
from collections import deque
from typing import TYPE_CHECKING

from retinue.channel.messages import Report
from retinue.supervise.ending import Cause
from retinue.supervise.happenings import (
    AgentSaid,
    Happening,
    LaunchExited,
    LaunchSaid,
    NodeGone,
    NodeReported,
    RunTimer,
    StopSignal,
    TermHeard,
    TrainerExited,
)
from retinue.terms.replica import Exited, StopAsked

if TYPE_CHECKING:
    from retinue.supervise.run import Run

HOLD_S = 2.0
"""How long an end is held back: Slurm signals all nodes of a job within less."""
NEAR_S = 5.0
"""An end so long after the stop signal still belongs to it."""
TIMER = "held"
TERM_CODES = (0, 128 + signals.SIGTERM)
"""How a server ends that catches TERM, and a shell whose child was ended by it."""
FOLLOWING = (LaunchExited, LaunchSaid, NodeGone, NodeReported, TrainerExited)
"""Wait behind what is held: they may be about the same end, and are told in order."""


class JobSignal:
    """What is held back, and whether all of the job was signalled."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._held: deque[Happening] = deque()
        self._heard_nodes: set[str] = set()
        """Nodes whose outer process had a TERM."""
        self._stop_s: float | None = None
        """When the stub told of its first TERM."""
        self._heard_s: float | None = None
        """When something else of ours than a service was seen to have had one."""

    @property
    def is_pending(self) -> bool:
        """A TERM came to the stub, and whether to all of the job will be known in a moment."""
        return self._stop_s is not None and self._is_in_slurm

    @property
    def _is_in_slurm(self) -> bool:
        return bool(self.run.plan.allocation.job_id)

    def holds(self, happening: Happening) -> bool:
        """Keep it for later when it may be the work of a TERM that the stub has not told of yet."""
        if not self._is_in_slurm or self.run.state.ending is not None:
            return False
        is_doubtful = self._is_by_term(happening)
        if not is_doubtful and not (self._held and isinstance(happening, FOLLOWING)):
            return False
        if not self._held:
            due_s = self.run.edges.clock.now_s() + HOLD_S
            self.run.edges.timers.set(TIMER, due_s, RunTimer(TIMER))
        self._held.append(happening)
        if isinstance(happening, NodeReported) and is_doubtful:
            self._heard_nodes.add(happening.node)
            self._look_at_all()
        return True

    def _look_at_all(self) -> None:
        """TERM on every node: Slurm signalled all steps, and has left the batch script out, as before a preemption.

        Source: GraceTime, slurm.conf(5): TERM at once, the end as by the time limit when it is over.
        """
        if self._heard_nodes >= set(self.run.nodes.live()):
            self.run.teardown.begin(Cause.SIGNAL, "SIGTERM was received on every node", signal=int(signals.SIGTERM))
            self.run.teardown.take_job_signal(has_spared_batch=True)

    def release(self) -> list[Happening]:
        """Give back what was held, in order."""
        held = list(self._held)
        self._held.clear()
        return held

    def note(self, happening: Happening) -> None:
        """Take in what a happening says about a signal to all, before it is acted on."""
        if not self._is_in_slurm:
            return
        now_s = self.run.edges.clock.now_s()
        match happening:
            case StopSignal(name="TERM") if self._stop_s is None:
                self._stop_s = now_s
            case TermHeard():
                self._heard_s = now_s
            case NodeReported() if self._is_by_term(happening):
                self._heard_s = now_s
            case AgentSaid(message=Report(replica=key, event=Exited())) if self._is_by_term(happening):
                self._explain(key, now_s)

    def settle(self) -> None:
        """Say so when all of the job was signalled: the stub, and something else of ours at about the same time."""
        if self._stop_s is not None and self._heard_s is not None and abs(self._stop_s - self._heard_s) <= NEAR_S:
            self.run.teardown.take_job_signal()

    def _explain(self, key: str, now_s: float) -> None:
        """A service that ended by the same TERM as the stub was asked to stop by it."""
        if self._stop_s is not None and now_s - self._stop_s <= NEAR_S:
            self.run.fleet.apply(key, StopAsked("it was signalled as the stub was"))

    def _is_by_term(self, happening: Happening) -> bool:
        match happening:
            case AgentSaid(message=Report(replica=key, event=Exited() as end)):
                return not end.was_asked and self._is_term_exit(key, end)
            case NodeReported(report=report):
                return report.get("asked_by") == "SIGTERM"
            case TrainerExited(code=code, signal=signal):
                return signal == signals.SIGTERM or code == TERM_CODES[1]
            case _:
                return False

    def _is_term_exit(self, key: str, end: Exited) -> bool:
        seat = self.run.fleet.seats.get(key)
        if seat is None or (end.code is not None and end.code in seat.replica.policy.restart.success):
            return False
        return end.signal == signals.SIGTERM or end.code in TERM_CODES
