"""The run: one happening in, everything that follows from it out, synchronously.

Owns the order of things: nodes join, services start by their dependencies, the
trainer starts when all are ready, and at the end the trainer stops first, then
services callers-first, then the nodes. Never waits and never reads a clock of
its own; `advance` is level-triggered, so any order of happenings gets there.
"""

from collections.abc import Mapping, Sequence

from retinue.channel.messages import (
    Answer,
    Ask,
    Beat,
    BindGateway,
    GatewayBound,
    GatewayFacts,
    NodeEnding,
    NodeNote,
    Report,
)
from retinue.lifecycle.order import find_hopeless, find_ready_to_start, find_restart_dependants
from retinue.plan.records import Plan, ServicePlan
from retinue.supervise.edges import Edges
from retinue.supervise.ending import Cause
from retinue.supervise.fleet import Fleet, Seat
from retinue.supervise.happenings import (
    AgentJoined,
    AgentLeft,
    AgentSaid,
    FencedOff,
    Happening,
    LaunchExited,
    NodeGone,
    NodeReported,
    OperatorAsked,
    ReplicaTimer,
    RunTimer,
    StopSignal,
    StubGone,
    StubHello,
    Ticked,
    TrainerExited,
    TrainerRefused,
    TrainerStarted,
)
from retinue.supervise.nodes import Nodes
from retinue.supervise.spread import TIMER as ROUTES_TIMER
from retinue.supervise.spread import Spread
from retinue.supervise.state import RunPhase, RunState, TrainerState
from retinue.supervise.teardown import Teardown
from retinue.supervise.trainer import Surroundings
from retinue.terms.record import replace
from retinue.terms.replica import DependenciesReady, LaunchRefused, NodeLost, OnExhausted, Phase, RestartAsked

STARTS_AT_ONCE = 100
"""Launches decided on between two happenings: about 15 ms."""


class Run:
    """The whole run. `handle` is the one door."""

    def __init__(self, plan: Plan, edges: Edges, fleet: Fleet, surroundings: Surroundings) -> None:
        self.plan = plan
        self.edges = edges
        self.fleet = fleet
        self.surroundings = surroundings
        self.state = RunState()
        self.nodes = Nodes([node.name for node in plan.allocation.nodes], edges.gateway_ports)
        self.teardown = Teardown(self)
        self.controller_starts = 1
        self.spread = Spread(plan, edges, fleet, self.nodes)
        self._failed_any = False
        """Some replica will not be tried again: others may be waiting for it in vain."""

    def restore(self, state: RunState, seats: Mapping[str, Seat]) -> None:
        """Go on where the last controller was killed; agents and the stub say what happened since."""
        self.state = state
        if state.gateway_port is not None:
            self.fleet.shared_env = self.surroundings.build_shared_env(state.gateway_port)
        self.fleet.restore(seats)

    # --- the one door ----------------------------------------------------------

    def handle(self, happening: Happening) -> None:
        """Take in one happening and do all that follows from it."""
        self._take(happening)
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
                self.nodes.change(node, hello=hello, gateway_port=hello.gateway_port)
                self.edges.journal.note(node, "AgentJoined", f"agent start {hello.agent_starts}, pid {hello.host_pid}")
                self.fleet.reconcile(node, hello.observed)
                self.spread.greet(node)
            case AgentSaid(node=node, message=message):
                self._take_message(node, message)
            case AgentLeft(node=node):
                if self.state.phase is RunPhase.ENDING or self.state.ending_is(Cause.STUB_LOST):
                    self._lose_node(node, "its agent left while the run ended")
            case NodeGone(node=node, cause=cause):
                self._lose_node(node, cause)
            case NodeReported(node=node, report=report):
                self.nodes.change(node, report=report)
            case LaunchExited(code=code, signal=signal):
                self.change(has_launch_ended=True)
                for node in self.nodes.live():
                    if self.state.phase not in (RunPhase.ENDING, RunPhase.OVER):
                        self._lose_node(node, f"its launch ended ({describe_end(code, signal)})")
            case TrainerStarted(pid=pid):
                self.change(trainer=TrainerState.RUNNING, trainer_pid=pid)
                self.edges.journal.note("trainer", "TrainerStarted", f"pid {pid}")
            case TrainerRefused(errno=errno, cause=cause):
                self.change(trainer=TrainerState.ENDED)
                self.teardown.begin(Cause.TRAINER_REFUSED, cause, refused_code=127 if errno == 2 else 126)
            case TrainerExited(code=code, signal=signal):
                self.change(trainer=TrainerState.ENDED, trainer_code=code, trainer_signal=signal)
                self.teardown.begin(Cause.TRAINER, f"the trainer ended ({describe_end(code, signal)})")
            case StopSignal():
                self.teardown.take_signal(happening)
            case StubGone():
                self.change(trainer=TrainerState.ENDED, has_launch_ended=True)
                self.teardown.begin(Cause.STUB_LOST, "the stub was killed")
            case FencedOff(by=by):
                self.teardown.begin(Cause.FENCED, f"the run directory was taken over by {by}")
            case OperatorAsked(ask=ask, reply=reply):
                reply(self._answer(ask))
            case ReplicaTimer(replica=key, fired=fired):
                self.fleet.apply(key, fired)
            case RunTimer(name=name):
                self._take_timer(name)
            case Ticked():
                pass

    def _take_message(self, node: str, message: object) -> None:
        match message:
            case Report(replica=key, event=event):
                self.fleet.apply(key, event)
            case Beat():
                self.nodes.change(node, beat=message)
            case GatewayFacts():
                self.nodes.take_facts(node, message)
            case GatewayBound(port=port, is_bound=is_bound, holder=holder):
                if is_bound:
                    self.nodes.change(node, gateway_port=port)
                elif port == self.nodes.port:
                    self.nodes.refuse_port(node, port, holder)
                    self._propose_port()
            case NodeNote(what=what, reason=reason):
                self.edges.journal.note(node, what, reason)
            case NodeEnding(reason=reason):
                self.edges.journal.note(node, "NodeEnding", reason)

    def _take_hello(self, hello: StubHello) -> None:
        self.controller_starts = hello.starts
        self.spread.epoch = hello.starts << 32
        if hello.starts > 1:
            for node in self.nodes.live():
                self.edges.agents.expect(node)
        for node, report in hello.nodes.items():
            self.nodes.change(node, report=report)
        if hello.launch is None and self.state.ending is None:
            self.change(is_launched=True)
            self.edges.stub.order(self.edges.launch_order)
            self.edges.timers.set("join", self.edges.clock.now_s() + self.plan.join_timeout_s, RunTimer("join"))
        if hello.launch is not None and not hello.launch.is_running:
            self._take(LaunchExited(hello.launch.code, hello.launch.signal))
        if self.state.gateway_port is not None:
            self.nodes.port = self.state.gateway_port
        self.teardown.arm_deadline()
        self._take_trainer(hello)
        for stop in hello.stops:
            self._take(StopSignal(stop["signal"], stop["count"], stop.get("from_terminal", False)))

    def _take_trainer(self, hello: StubHello) -> None:
        """A controller that starts again learns from the stub what the trainer did meanwhile."""
        trainer = hello.trainer
        if trainer is None:
            return
        if trainer.errno is not None:
            self._take(TrainerRefused(trainer.errno, trainer.cause))
            return
        if trainer.is_started and self.state.trainer_pid == 0:
            self._take(TrainerStarted(trainer.pid))
        if not trainer.is_running and self.state.trainer is not TrainerState.ENDED:
            self._take(TrainerExited(trainer.code, trainer.signal))

    def _take_timer(self, name: str) -> None:
        match name.partition(":"):
            case ("join", _, _) if self.state.phase is RunPhase.JOINING:
                missing = ", ".join(self.nodes.missing()) or "no node"
                self.teardown.begin(Cause.NOT_READY, f"did not join within {self.plan.join_timeout_s:g} s: {missing}")
            case (timer, _, _) if timer == ROUTES_TIMER:
                self.spread.take_timer()
            case ("hold", _, service) if not self._is_ready(self.fleet.services[service]):
                self.teardown.begin(
                    Cause.FAIL_RUN, f"{service} was not brought back within run.hold ({self.plan.hold_s:g} s)"
                )
            case _:
                self.teardown.take_timer(name)

    # --- level-triggered progress -------------------------------------------------

    def advance(self) -> None:
        """Do whatever the present state allows; called after every happening."""
        if self.state.phase is RunPhase.JOINING and self.state.ending is None:
            self._advance_joining()
        if self.state.phase in (RunPhase.STARTING, RunPhase.RUNNING) and not self.teardown.is_stopping_services:
            self._keep_services()
        if self.state.phase is RunPhase.STARTING and self.state.ending is None:
            self._start_trainer_when_ready()
        if self.state.ending is not None:
            self.teardown.advance()
        self.spread.advance()

    def _advance_joining(self) -> None:
        if self.nodes.has_missing:
            return
        if self.nodes.port is None:
            self._propose_port()
        elif self.nodes.are_bound():
            self.edges.timers.cancel("join")
            self.fleet.shared_env = self.surroundings.build_shared_env(self.nodes.port)
            self.change(phase=RunPhase.STARTING, gateway_port=self.nodes.port)
            self.edges.journal.note("run", "NodesJoined", f"gateways listen on port {self.nodes.port}")

    def _propose_port(self) -> None:
        port = self.nodes.propose_port()
        if port is None:
            tried = "; ".join(self.nodes.refusals[-3:])
            self.teardown.begin(Cause.NOT_READY, f"no port for the gateways could be bound: {tried}")
            return
        for view in self.nodes.joined():
            self.edges.agents.send(view.name, BindGateway(port=port))

    def _keep_services(self) -> None:
        if self.fleet.take_new_phases() and any(map(self._may_start, self.fleet.pending_count)):
            self._start_some(find_ready_to_start(self.plan.services, self.fleet.replicas))
        while self.fleet.launched_again:
            self._restart_dependants(self.fleet.launched_again.popleft())
        while self.fleet.exhausted:
            self._take_exhausted(*self.fleet.exhausted.popleft())
        if self._failed_any:
            self._failed_any = False
            self._give_up_hopeless()

    def _start_some(self, keys: Sequence[str]) -> None:
        """Start replicas, of very many only some: the rest follows when what happened meanwhile is dealt with."""
        for key in keys[:STARTS_AT_ONCE]:
            self.fleet.apply(key, DependenciesReady(incarnation=self.fleet.replicas[key].incarnation))
        if keys:
            self.edges.timers.set("start", self.edges.clock.now_s(), RunTimer("start"))

    def _may_start(self, service: str) -> bool:
        """Say whether it is worth asking which replicas of a service may start: no, while it waits for a count."""
        return all(
            self._is_ready(self.fleet.services[edge.service])
            for edge in self.fleet.services[service].depends_on
            if edge.condition == "ready" and edge.is_required
        )

    def _give_up_hopeless(self) -> None:
        """Before the trainer runs, what can never start ends the run; later it is failed for good, by name."""
        for key, why in find_hopeless(self.plan.services, self.fleet.replicas).items():
            if self.state.phase is RunPhase.STARTING:
                self.teardown.begin(Cause.NOT_READY, f"{key} can never start: {why}")
                return
            number = self.fleet.replicas[key].incarnation
            self.fleet.apply(key, LaunchRefused(number, why, retryable=False))

    def _restart_dependants(self, service: str) -> None:
        for name in find_restart_dependants(service, self.plan.services):
            for seat in self.fleet.of_service(name):
                if seat.replica.phase in (Phase.STARTING, Phase.READY, Phase.UNREADY):
                    self.fleet.apply(
                        seat.replica.id,
                        RestartAsked(seat.replica.incarnation, f"its dependency {service} was started again"),
                    )

    def _take_exhausted(self, key: str, why: str) -> None:
        service = self.fleet.services[self.fleet.seats[key].place.service]
        self._failed_any = True
        able = sum(seat.replica.phase is not Phase.FAILED for seat in self.fleet.of_service(service.name))
        text = f"{key} will not be tried again: {why}"
        if service.on_exhausted is OnExhausted.HOLD:
            due_s = self.edges.clock.now_s() + self.plan.hold_s
            self.edges.timers.set(f"hold:{service.name}", due_s, RunTimer(f"hold:{service.name}"))
        elif service.on_exhausted is OnExhausted.FAIL_RUN and self.state.phase is RunPhase.RUNNING:
            self.teardown.begin(Cause.FAIL_RUN, text)
        elif self.state.phase is RunPhase.STARTING and able < service.min_ready:
            self.teardown.begin(Cause.NOT_READY, text)

    def _is_ready(self, service: ServicePlan) -> bool:
        return self.fleet.ready_count[service.name] >= service.min_ready

    def unready_services(self) -> list[str]:
        return [service.name for service in self.plan.services if not self._is_ready(service)]

    def _start_trainer_when_ready(self) -> None:
        if self.unready_services():
            return
        self.change(phase=RunPhase.RUNNING)
        self.edges.journal.note("run", "ServicesReady", "all services are ready")
        if self.plan.trainer.argv and self.nodes.port is not None:
            self.change(trainer=TrainerState.ASKED)
            self.edges.stub.order(self.surroundings.build_trainer_order(self.nodes.port))

    # --- nodes --------------------------------------------------------------------

    def _lose_node(self, node: str, cause: str) -> None:
        if self.nodes.views[node].is_lost:
            return
        self.nodes.change(node, is_lost=True, lost_cause=cause)
        self.edges.agents.forget(node)
        self.fleet.lost_nodes.add(node)
        self.edges.journal.note(node, "NodeLost", cause)
        if self.state.phase is not RunPhase.ENDING and (node in self._trainer_nodes() or not self.nodes.live()):
            self.teardown.begin(Cause.NODE_LOST, f"node {node} was lost: {cause}")
        for seat in self.fleet.on_node(node):
            self.fleet.apply(seat.replica.id, NodeLost(seat.replica.incarnation, f"node {node}: {cause}"))

    def _trainer_nodes(self) -> tuple[str, ...]:
        if not self.plan.trainer.argv:
            return ()
        for group in self.plan.groups:
            if group.name == self.plan.trainer.group:
                return group.nodes
        return tuple(self.nodes.views)

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
