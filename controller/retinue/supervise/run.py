"""The run: one happening in, everything that follows from it out, synchronously.

Owns the order of things: nodes join (`attendance`), services start by their
dependencies (`upkeep`), the trainer starts when all are ready, and at the end the
trainer stops first, then services callers-first, then the nodes (`teardown`).
Never waits and never reads a clock of its own; `advance` is level-triggered, so
any order of happenings gets there.
"""

from collections.abc import Mapping

from retinue.channel.messages import Answer, Ask, Report
from retinue.plan.records import Plan
from retinue.supervise.attendance import Attendance
from retinue.supervise.edges import Edges
from retinue.supervise.egress import EgressWatch
from retinue.supervise.ending import Cause
from retinue.supervise.fleet import Fleet
from retinue.supervise.happenings import (
    AgentJoined,
    AgentLeft,
    AgentSaid,
    FencedOff,
    Happening,
    LaunchExited,
    LaunchSaid,
    NodeGone,
    NodeReported,
    OperatorAsked,
    ReplicaTimer,
    RunTimer,
    StopSignal,
    StubGone,
    StubHello,
    TermHeard,
    Ticked,
    TrainerExited,
    TrainerRefused,
    TrainerStarted,
)
from retinue.supervise.inquiry import COMMAND as FACTS_COMMAND
from retinue.supervise.inquiry import TIMER as FACTS_TIMER
from retinue.supervise.inquiry import Inquiries
from retinue.supervise.job_signal import TIMER as HELD_TIMER
from retinue.supervise.job_signal import JobSignal
from retinue.supervise.nodes import Nodes
from retinue.supervise.progress import Progress
from retinue.supervise.seat import Seat
from retinue.supervise.spread import TIMER as ROUTES_TIMER
from retinue.supervise.spread import Spread
from retinue.supervise.state import RunPhase, RunState, TrainerState
from retinue.supervise.teardown import Teardown
from retinue.supervise.trainer import Surroundings
from retinue.supervise.upkeep import Upkeep
from retinue.terms.record import replace
from retinue.terms.replica import Phase, RestartAsked


class Run:
    """The whole run. `handle` is the one door."""

    def __init__(self, plan: Plan, edges: Edges, fleet: Fleet, surroundings: Surroundings) -> None:
        self.plan = plan
        self.edges = edges
        self.fleet = fleet
        self.surroundings = surroundings
        self.state = RunState()
        self.nodes = Nodes([node.name for node in plan.allocation.nodes], edges.gateway_ports)
        self.attendance = Attendance(self)
        self.upkeep = Upkeep(self)
        self.job_signal = JobSignal(self)
        self.teardown = Teardown(self)
        self.progress = Progress(self)
        self.egress = EgressWatch(self)
        self.inquiries = Inquiries(self)
        self.controller_starts = 1
        self.spread = Spread(plan, edges, fleet, self.nodes)

    def restore(self, state: RunState, seats: Mapping[str, Seat]) -> None:
        """Go on where the last controller was killed; agents and the stub say what happened since."""
        self.state = state
        if state.gateway_port is not None:
            self.fleet.shared_env = self.surroundings.build_shared_env(state.gateway_port)
        self.fleet.restore(seats)

    # --- the one door ----------------------------------------------------------

    def handle(self, happening: Happening) -> None:
        """Take in one happening and do all that follows from it."""
        if not self.job_signal.holds(happening):
            self._handle(happening)
        if self.state.ending is not None or happening == RunTimer(HELD_TIMER):
            for held in self.job_signal.release():
                self._handle(held)

    def _handle(self, happening: Happening) -> None:
        self.job_signal.note(happening)
        self.job_signal.settle()
        self._take(happening)
        self.job_signal.settle()
        self.advance()

    def change(self, **fields: object) -> None:
        """Change the run's own state; saved before anything is done about it."""
        self.state = replace(self.state, **fields)
        self.edges.store.save("run", self.state)

    def _take(self, happening: Happening) -> None:
        match happening:
            case StubHello():
                self._take_hello(happening)
            case AgentJoined(node=node, hello=hello):
                self.attendance.take_join(node, hello)
                self.spread.greet(node)
            case AgentSaid(message=Report(replica=key, event=event)):
                self.fleet.apply(key, event)
            case AgentSaid(node=node, message=message):
                self.attendance.take_message(node, message)
            case AgentLeft(node=node):
                self.attendance.take_leave(node)
            case NodeGone(node=node, cause=cause):
                self.attendance.lose(node, cause)
            case NodeReported(node=node, report=report):
                self.attendance.take_report(node, report)
            case LaunchSaid(line=line):
                self.attendance.take_words(line)
            case LaunchExited(code=code, signal=signal, cause=cause):
                self.change(has_launch_ended=True)
                self.attendance.take_launch_end(cause or describe_end(code, signal))
            case TrainerStarted(pid=pid):
                self.change(trainer=TrainerState.RUNNING, trainer_pid=pid)
                self.edges.journal.note("trainer", "TrainerStarted", f"pid {pid}")
            case TrainerRefused(errno=errno, cause=cause):
                self.change(trainer=TrainerState.ENDED)
                self.teardown.begin(Cause.TRAINER_REFUSED, cause, refused_code=127 if errno == 2 else 126)
            case TrainerExited(code=code, signal=signal):
                self.change(trainer=TrainerState.ENDED, trainer_code=code, trainer_signal=signal)
                self.teardown.trainer.end()
                self.teardown.begin(Cause.TRAINER, f"the trainer ended ({describe_end(code, signal)})")
            case StopSignal():
                self.teardown.take_signal(happening)
            case TermHeard():
                self.edges.journal.note("run", "TermHeard", "the controller was sent SIGTERM")
            case StubGone():
                self.change(trainer=TrainerState.ENDED, has_launch_ended=True)
                self.teardown.begin(Cause.STUB_LOST, "the stub was killed")
            case FencedOff(by=by):
                self.teardown.begin(Cause.FENCED, f"the run directory was taken over by {by}")
            case OperatorAsked(ask=ask, reply=reply) if ask.command == FACTS_COMMAND:
                self.inquiries.ask(reply)
            case OperatorAsked(ask=ask, reply=reply):
                reply(self._answer(ask))
            case ReplicaTimer(replica=key, fired=fired):
                self.fleet.apply(key, fired)
            case RunTimer(name=name):
                self._take_timer(name)
            case Ticked():
                self.progress.take_tick()

    def _take_hello(self, hello: StubHello) -> None:
        self.controller_starts = hello.starts
        self.spread.epoch = hello.starts << 32
        self.attendance.take_hello(hello)
        if hello.launch is not None and not hello.launch.is_running:
            self._take(LaunchExited(hello.launch.code, hello.launch.signal, hello.launch.cause))
        if self.state.gateway_port is not None:
            self.nodes.port = self.state.gateway_port
        self.teardown.arm_deadline()
        self._take_trainer(hello)
        self.teardown.trainer.resume()
        for stop in hello.stops:
            self._take(StopSignal(stop["signal"], stop["count"], stop.get("from_terminal", False)))

    def _take_trainer(self, hello: StubHello) -> None:
        """A controller that starts again learns from the stub what the trainer did meanwhile."""
        trainer = hello.trainer
        if trainer is None:
            self._take_missing_trainer()
            return
        if trainer.errno is not None:
            self._take(TrainerRefused(trainer.errno, trainer.cause))
            return
        if trainer.is_started and self.state.trainer_pid == 0:
            self._take(TrainerStarted(trainer.pid))
        if not trainer.is_running and self.state.trainer is not TrainerState.ENDED:
            self._take(TrainerExited(trainer.code, trainer.signal))

    def _take_missing_trainer(self) -> None:
        """The last controller was killed between its decision and the order: give it again, or not any more."""
        if self.state.trainer is not TrainerState.ASKED:
            return
        if self.state.ending is None:
            self._ask_for_trainer()
        else:
            self.change(trainer=TrainerState.NONE)

    def _take_timer(self, name: str) -> None:
        match name.partition(":"):
            case ("join", _, _):
                self.attendance.take_timer()
            case (timer, _, _) if timer == ROUTES_TIMER:
                self.spread.take_timer()
            case (timer, _, number) if timer == FACTS_TIMER:
                self.inquiries.take_timer(number)
            case ("hold", _, service):
                self.upkeep.take_hold_end(service)
            case _:
                self.teardown.take_timer(name)

    # --- level-triggered progress -------------------------------------------------

    def advance(self) -> None:
        """Do whatever the present state allows; called after every happening."""
        if self.state.phase is RunPhase.JOINING and self.state.ending is None:
            self.attendance.advance()
        if self.state.phase in (RunPhase.STARTING, RunPhase.RUNNING) and not self.teardown.is_stopping_services:
            self.upkeep.advance()
        if self.state.phase is RunPhase.STARTING and self.state.ending is None:
            self._start_trainer_when_ready()
        if self.state.ending is not None:
            self.teardown.advance()
        self.spread.advance()
        self.inquiries.advance()

    def _start_trainer_when_ready(self) -> None:
        if not self.upkeep.are_all_ready():
            return
        self.change(phase=RunPhase.RUNNING)
        self.edges.journal.note("run", "ServicesReady", "all services are ready")
        if self.plan.trainer.argv:
            self.change(trainer=TrainerState.ASKED)
            self._ask_for_trainer()

    def _ask_for_trainer(self) -> None:
        if self.nodes.port is not None:
            self.edges.start_trainer(self.surroundings.build_trainer_order(self.nodes.port))

    def describe_reason(self, seat: Seat) -> str:
        """Say why a replica is in its phase; for one that is not ready yet, what its probes last answered."""
        if not self.is_waited_for(seat):
            return seat.replica.reason
        return self.nodes.views[seat.place.node].beat.failing.get(seat.replica.id, "") or seat.replica.reason

    def is_waited_for(self, seat: Seat) -> bool:
        """Tell whether a replica's probes are asked about its being ready: what they answer changes with every beat."""
        return seat.replica.phase in (Phase.STARTING, Phase.UNREADY)

    # --- operators ------------------------------------------------------------------

    def _answer(self, ask: Ask) -> Answer:
        match ask.command:
            case "down":
                self.teardown.begin(Cause.OPERATOR, "an operator asked (retinue down)")
                return Answer(True, "stopping")
            case "restart":
                return self._answer_restart(ask.target)
            case _:
                return Answer(False, f'the controller does not know the command "{ask.command}"')

    def _answer_restart(self, target: str) -> Answer:
        if self.state.ending is not None:
            return Answer(False, "the run is stopping")
        keys = [key for key, seat in self.fleet.seats.items() if target in (key, seat.place.service)]
        if not keys:
            known = ", ".join(self.fleet.services)
            return Answer(False, f'no service or replica is called "{target}"; services are {known}')
        for key in keys:
            self.fleet.apply(key, RestartAsked(self.fleet.seats[key].replica.incarnation))
        return Answer(True, f"restarting {', '.join(keys)}")


def describe_end(code: int | None, signal: int | None) -> str:
    """Say how a process ended: `exit code 3`, `signal 9`."""
    if signal is not None:
        return f"signal {signal}"
    return f"exit code {code}" if code is not None else "ended"
