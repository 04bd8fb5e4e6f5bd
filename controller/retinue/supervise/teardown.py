"""How a run stops: trainer first, then services callers-first, then nodes, then the verdict.

Level-triggered like the rest: `advance` looks at what is still there and does
the next step; asking twice for the same step is harmless.
"""

import signal as signals
from typing import TYPE_CHECKING

from retinue.channel.messages import EndNode
from retinue.lifecycle.order import next_to_stop
from retinue.supervise.ending import Cause, Ending, find_exit_code
from retinue.supervise.happenings import RunTimer, StopSignal
from retinue.supervise.state import RunPhase, TrainerState
from retinue.supervise.trainer_stop import TIMERS, TrainerStopper
from retinue.terms.record import replace
from retinue.terms.replica import Phase, StopAsked

if TYPE_CHECKING:
    from retinue.supervise.run import Run

END_NODE_S = 15.0
"""How long keepers may take to end their nodes before the launch itself is told to."""
TRAINER_SHARE, TRAINER_ALONE_SHARE = 0.6, 0.85
"""Of the time that is left before Slurm ends the job."""
LAUNCH_KILL_S = 1.0
"""Between TERM and KILL of a launch that only silent nodes keep alive."""
LAST_S = 5.0
"""Kept free before the deadline for ending nodes and writing the verdict."""
LAST_SHARE = 0.5
"""The same of a wait that is short: Slurm's KillWait may be a few seconds."""
TELL_S = 0.3
"""How long it takes to learn that Slurm has signalled all of the job, and the trainer with it."""
IMPATIENT_S = 2.0
"""Grace of everything after a second signal."""
FORWARDED = ("INT", "QUIT")
"""Signals the trainer gets as they came; every other stop becomes the manifest's stop signal."""


class Teardown:
    """The stopping half of a run."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._asked: set[str] = set()
        self._noted: set[str] = set()
        self._asked_while: set[str] = set()
        """Services that were not over when replicas were last asked to stop: the next lane's turn comes when one is."""
        self._signal: StopSignal | None = None
        self._is_launch_ended = False
        """The launch was told to end for the sake of nodes that will not end it."""
        self._told: set[str] | None = None
        """Nodes that were told to end: each will report. None: not by this controller."""
        self._is_telling_armed = self._is_telling_due = False
        self.trainer = TrainerStopper(run)

    @property
    def is_stopping_services(self) -> bool:
        """Nothing is started any more; what Slurm has signalled with all of the job stops beside the trainer."""
        state = self.run.state
        return state.ending is not None and (self._is_trainer_over() or state.signalled_utc is not None)

    def _is_trainer_over(self) -> bool:
        return self.run.state.trainer in (TrainerState.NONE, TrainerState.ENDED)

    def begin(self, cause: Cause, text: str, signal: int | None = None, refused_code: int = 0) -> None:
        """Stop the run; the first cause stays, a later one is only noted."""
        if text not in self._noted:
            self._noted.add(text)
            self.run.edges.journal.note("run", "StopBegun", text)
        if self.run.state.ending is None:
            self.run.change(ending=Ending(cause, text, signal, refused_code))

    def take_signal(self, happening: StopSignal) -> None:
        number = int(getattr(signals, f"SIG{happening.name}", signals.SIGTERM))
        self._signal = self._signal or happening
        self.begin(Cause.SIGNAL, f"SIG{happening.name} was received", signal=number)
        if happening.count >= 2 and self.run.state.urgency == 0:
            self.run.change(urgency=1)
            self._hasten()
        if happening.name == "TERM" and self.run.state.has_spared_batch:
            self._end_notice()

    def take_timer(self, name: str) -> None:
        run = self.run
        match name:
            case "deadline":
                self.begin(Cause.DEADLINE, f"the allocation ends in {run.plan.drain_s:g} s (run.drain)")
            case "tell":
                self._is_telling_due = True
            case "launch_kill" if run.state.phase is RunPhase.ENDING:
                run.edges.stub.order({"op": "signal_launch", "signal": "KILL"})
            case "end" if run.state.phase is RunPhase.ENDING:
                run.edges.stub.order({"op": "signal_launch", "signal": "TERM"})
                self._finish()
            case _ if name in TIMERS:
                self.trainer.take_timer(name)
            case _:
                pass

    def arm_deadline(self) -> None:
        end_utc = self.run.plan.allocation.end_utc
        if end_utc is None:
            return
        clock = self.run.edges.clock
        left_s = end_utc - clock.now_utc() - self.run.plan.drain_s
        self.run.edges.timers.set("deadline", clock.now_s() + max(0.0, left_s), RunTimer("deadline"))

    # --- the steps --------------------------------------------------------------

    def advance(self) -> None:
        run = self.run
        if run.state.trainer is TrainerState.RUNNING:
            self._tell_trainer()
        if not self.is_stopping_services or run.state.phase is RunPhase.OVER:
            return
        while asked := self._next_to_stop():
            for key in asked:
                self._asked.add(key)
                run.fleet.apply(key, StopAsked("the run ends", self._grace_s()))
        if run.state.phase is not RunPhase.ENDING and run.fleet.is_over() and self._is_trainer_over():
            self._end_nodes()
        if run.state.phase is RunPhase.ENDING:
            self._end_launch()
        if run.state.phase is RunPhase.ENDING and self._are_nodes_gone():
            self._finish()

    def _next_to_stop(self) -> list[str]:
        run = self.run
        if run.fleet.counts.live.keys() == self._asked_while:
            return []
        self._asked_while = set(run.fleet.counts.live)
        lanes = next_to_stop(run.plan.stop_lanes, run.plan.services, run.fleet.replicas)
        return [key for key in lanes if key not in self._asked]

    def _tell_trainer(self) -> None:
        """Tell it, but for a TERM that all of the job may have had: whether so is known in a moment."""
        run, stop = self.run, self._signal
        if run.state.trainer_stop is not None:
            return
        was_told = run.state.signalled_utc is not None
        if not was_told and not self._is_telling_due and run.job_signal.is_pending:
            if not self._is_telling_armed:
                self._is_telling_armed = True
                run.edges.timers.set("tell", run.edges.clock.now_s() + TELL_S, RunTimer("tell"))
            return
        name = stop.name if stop is not None and stop.name in FORWARDED else run.plan.trainer.stop_signal
        has_heard = was_told or (stop is not None and stop.is_from_terminal)
        self.trainer.begin("" if was_told else name, self._trainer_grace_s(), has_heard)
        if run.state.has_spared_batch:
            # Its tasks have heard, but it is itself in the batch script's step. An srun client would end them at once.
            run.edges.stub.order({"op": "signal_trainer", "signal": name, "spares_srun": True})

    def _hasten(self) -> None:
        """A second signal: nobody waits longer than two seconds for anything."""
        if self.run.state.trainer is TrainerState.RUNNING:
            self.trainer.hasten(IMPATIENT_S)
        for key, seat in self.run.fleet.seats.items():
            if seat.replica.phase is Phase.STOPPING:
                self.run.fleet.apply(key, StopAsked("a second signal", self._grace_s()))

    def take_job_signal(self, has_spared_batch: bool = False) -> None:
        """All processes of the job have had TERM, and what is left is killed soon: everything stops at once."""
        run = self.run
        if run.state.signalled_utc is not None or run.state.ending is None:
            return
        run.change(signalled_utc=run.edges.clock.now_utc(), has_spared_batch=has_spared_batch)
        who = "every process of the job" + (" but the batch script's" if has_spared_batch else "")
        text = f"Slurm kills what is left in {self._kill_wait_s():g} s"
        run.edges.journal.note("run", "JobSignalled", f"{who} was signalled; {text}")
        if run.state.ending.cause is Cause.SIGNAL:
            run.change(ending=replace(run.state.ending, text=f"{run.state.ending.text}, as by {who}"))
        self.trainer.hasten(self._trainer_grace_s())
        for key in run.fleet.seats:
            # All at once: each has had its TERM, and its node ends.
            run.fleet.apply(key, StopAsked("every process of the job was signalled", self._grace_s()))

    def _end_notice(self) -> None:
        """What was announced has come: from now on it is KillWait alone."""
        self.run.change(signalled_utc=self.run.edges.clock.now_utc(), has_spared_batch=False)
        self.trainer.hasten(self._trainer_grace_s())

    def _kill_wait_s(self) -> float:
        plan = self.run.plan
        return plan.kill_wait_s + (plan.preempt_grace_s if self.run.state.has_spared_batch else 0.0)

    def _left_s(self) -> float | None:
        """How long the stop may take; None: as long as it likes."""
        ends = []
        if self.run.plan.allocation.end_utc is not None:
            ends.append(self.run.plan.allocation.end_utc - LAST_S)
        if self.run.state.signalled_utc is not None:
            wait_s = self._kill_wait_s()
            ends.append(self.run.state.signalled_utc + wait_s - min(LAST_S, wait_s * LAST_SHARE))
        return max(0.0, min(ends) - self.run.edges.clock.now_utc()) if ends else None

    def _trainer_grace_s(self) -> float:
        if self.run.state.urgency:
            return IMPATIENT_S
        left_s = self._left_s()
        grace_s = self.run.plan.trainer.grace_s
        # After a signal to all of the job its services end by themselves: what is left is the trainer's.
        share = TRAINER_SHARE if self.run.state.signalled_utc is None else TRAINER_ALONE_SHARE
        return grace_s if left_s is None else min(grace_s, left_s * share)

    def _grace_s(self) -> float | None:
        """Shrinks every replica's own grace; None: no need to."""
        if self.run.state.urgency:
            return IMPATIENT_S
        left_s = self._left_s()
        return None if left_s is None else left_s / max(1, len(self.run.plan.stop_lanes))

    def _end_nodes(self) -> None:
        run = self.run
        run.change(phase=RunPhase.ENDING)
        self._told = {view.name for view in run.nodes.joined()}
        for view in run.nodes.joined():
            run.edges.agents.send(view.name, EndNode("the run is over"))
        run.edges.timers.set("end", run.edges.clock.now_s() + END_NODE_S, RunTimer("end"))

    def _end_launch(self) -> None:
        """End the launch on nodes that never joined or are lost, and so are not told; the others end in order first.

        Where only such nodes are left, it is killed soon: srun waits for a dead node for as long as Slurm does not
        know of it, and has nothing more to say.
        """
        run = self.run
        if self._told is None or self._is_launch_ended or self._are_nodes_gone():
            return
        silent = {view.name for view in run.nodes.views.values() if view.report is None}
        if not silent or silent & self._told:
            return
        self._is_launch_ended = True
        run.edges.stub.order({"op": "signal_launch", "signal": "TERM"})
        if self._told:
            run.edges.timers.set("launch_kill", run.edges.clock.now_s() + LAUNCH_KILL_S, RunTimer("launch_kill"))

    def _are_nodes_gone(self) -> bool:
        return self.run.state.has_launch_ended or not self.run.state.is_launched

    def _finish(self) -> None:
        run, ending = self.run, self.run.state.ending
        if run.state.phase is RunPhase.OVER or ending is None:
            return
        run.change(phase=RunPhase.OVER)
        run.fleet.close_outages()
        run.edges.finish(self.find_exit_code())

    def find_exit_code(self) -> int:
        state = self.run.state
        if state.ending is None:
            return 0
        has_started = state.trainer_pid > 0
        return find_exit_code(state.ending, has_started, state.trainer_code, state.trainer_signal)
