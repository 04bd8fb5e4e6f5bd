"""How the trainer is stopped: its Slurm tasks first, where it has any, and its first process last.

A TERM to an srun client is no graceful stop: Slurm ends its tasks in the same second. So the nodes are asked to
signal the trainer's tasks there, again and again until the trainer has ended: each node signals a task once, and a
question that got lost is asked again a second later. Only where no node has any is the trainer a plain process.
"""

from typing import TYPE_CHECKING

from retinue.channel.messages import SignalTasks, TasksSeen
from retinue.supervise.happenings import RunTimer
from retinue.supervise.state import TrainerState, TrainerStop
from retinue.terms.record import replace

if TYPE_CHECKING:
    from retinue.supervise.run import Run

ASK_S = 1.0
"""Between two questions to the nodes about the trainer's tasks."""
ANSWER_S = 5.0
"""A node that has not answered by then has none: its agent is being started again, or it is about to be lost."""
LINGER_S = 3.0
"""How long srun, or the wrapper around it, may outlive the last task."""
CLIENT_S = 2.0
"""From the tasks' SIGKILL to that of the trainer's first process: srun ends by itself when its tasks have."""
ASK_TIMER, LINGER_TIMER, KILL_TIMER, CLIENT_TIMER = "trainer_ask", "trainer_linger", "trainer_kill", "trainer_client"
TIMERS = (ASK_TIMER, LINGER_TIMER, KILL_TIMER, CLIENT_TIMER)


class TrainerStopper:
    """What is done about a trainer that is to stop; the state says how far that is."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._seen: dict[str, TasksSeen] = {}
        """Node -> its last answer to what it is asked now."""
        self._is_lingering = False
        """The timer for that is armed."""

    def begin(self, signal: str, grace_s: float, has_heard: bool) -> None:
        """Tell the trainer to stop, once. With no signal its tasks have heard too, and are only counted."""
        run = self.run
        if run.state.trainer_stop is not None:
            return
        now_s = run.edges.clock.now_s()
        run.change(trainer_stop=TrainerStop(signal, now_s, now_s + grace_s, has_heard))
        what = f"SIG{signal}" if signal else "with all of the job"
        run.edges.journal.note("trainer", "StopHeard" if has_heard else "StopTold", f"{what}; grace {grace_s:g} s")
        self._set(KILL_TIMER, now_s + grace_s)
        self._ask()
        self._settle()

    def resume(self) -> None:
        """Go on after the last controller; what it had asked is asked again."""
        stop = self.run.state.trainer_stop
        if stop is None or self.run.state.trainer is not TrainerState.RUNNING:
            return
        self._set(KILL_TIMER, stop.kill_s)
        if stop.is_killing:
            self._set(CLIENT_TIMER, self.run.edges.clock.now_s() + CLIENT_S)
        self._set(ASK_TIMER, self.run.edges.clock.now_s() + ASK_S)

    def hasten(self, grace_s: float) -> None:
        """Shorten what is left of the grace."""
        stop = self.run.state.trainer_stop
        kill_s = self.run.edges.clock.now_s() + grace_s
        if stop is not None and not stop.is_killing and kill_s < stop.kill_s:
            self._change(kill_s=kill_s)
            self._set(KILL_TIMER, kill_s)

    def end(self) -> None:
        """The trainer has ended."""
        for timer in TIMERS:
            self.run.edges.timers.cancel(timer)

    def take_seen(self, node: str, seen: TasksSeen) -> None:
        """Take what a node found; an answer to an earlier question says nothing."""
        stop = self.run.state.trainer_stop
        if stop is None or seen.signal != self._wanted(stop):
            return
        self._seen[node] = seen
        if seen.told and not stop.has_tasks:
            self._change(has_tasks=True)
            what = f"sent SIG{seen.signal}" if seen.signal else "have heard too"
            self.run.edges.journal.note("trainer", "TasksTold", f"{seen.told} of its tasks on {node} {what}")
        self._settle()

    def take_timer(self, name: str) -> None:
        stop = self.run.state.trainer_stop
        if stop is None or self.run.state.trainer is not TrainerState.RUNNING:
            return
        match name:
            case "trainer_ask":
                self._ask()
                self._settle()
            case "trainer_linger" if not stop.is_prodded and self._are_tasks_gone(stop):
                self._change(is_prodded=True, has_heard=True)
                self.run.edges.journal.note("trainer", "StopTold", "its tasks have ended and it has not")
                self._signal(self.run.plan.trainer.stop_signal)
            case "trainer_kill":
                self._kill(stop)
            case "trainer_client":
                self._signal("KILL")

    # --- steps --------------------------------------------------------------------------

    def _ask(self) -> None:
        stop, run = self.run.state.trainer_stop, self.run
        if stop is None or not run.plan.allocation.job_id:
            return
        spared = run.surroundings.caller.get("SLURM_STEP_ID", "")
        for view in run.nodes.joined():
            run.edges.agents.send(view.name, SignalTasks(self._wanted(stop), spared))
        self._set(ASK_TIMER, run.edges.clock.now_s() + ASK_S)

    def _settle(self) -> None:
        """Do what follows from the answers so far."""
        stop, run = self.run.state.trainer_stop, self.run
        if stop is None or stop.is_killing or run.state.trainer is not TrainerState.RUNNING:
            return
        if stop.has_tasks:
            self._arm_linger(stop)
        elif not stop.has_heard and self._have_all_answered(stop):
            self._change(has_heard=True)
            self._signal(stop.signal)

    def _have_all_answered(self, stop: TrainerStop) -> bool:
        run = self.run
        if not run.plan.allocation.job_id or run.edges.clock.now_s() >= stop.began_s + ANSWER_S:
            return True
        return all(node in self._seen for node in run.nodes.live())

    def _are_tasks_gone(self, stop: TrainerStop) -> bool:
        live = self.run.nodes.live()
        return self._have_all_answered(stop) and not any(self._seen[node].live for node in live if node in self._seen)

    def _arm_linger(self, stop: TrainerStop) -> None:
        if not self._are_tasks_gone(stop):
            self.run.edges.timers.cancel(LINGER_TIMER)
            self._is_lingering = False
        elif not self._is_lingering and not stop.is_prodded:
            self._is_lingering = True
            self._set(LINGER_TIMER, self.run.edges.clock.now_s() + LINGER_S)

    def _kill(self, stop: TrainerStop) -> None:
        run = self.run
        run.edges.journal.note("trainer", "Killed", "still there after its grace")
        self._seen.clear()
        self._change(is_killing=True)
        if not stop.has_tasks:
            self._signal("KILL")
            return
        self._ask()
        self._set(CLIENT_TIMER, run.edges.clock.now_s() + CLIENT_S)

    @staticmethod
    def _wanted(stop: TrainerStop) -> str:
        return "KILL" if stop.is_killing else stop.signal

    def _signal(self, name: str) -> None:
        self.run.edges.stub.order({"op": "signal_trainer", "signal": name})

    def _change(self, **fields: object) -> None:
        stop = self.run.state.trainer_stop
        if stop is not None:
            self.run.change(trainer_stop=replace(stop, **fields))

    def _set(self, timer: str, due_s: float) -> None:
        self.run.edges.timers.set(timer, due_s, RunTimer(timer))
