"""A whole run in virtual time: the real core, a scripted stub, scripted nodes.

Only floor 3 is replaced. Time jumps to the next thing that is due; a run in
which everybody waits and nothing is due fails the test (`Stuck`).
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from retinue.allocation.records import Allocation, Node
from retinue.channel.messages import (
    BindGateway,
    EndNode,
    FromController,
    GatewayBound,
    Hello,
    LaunchOrder,
    Membership,
    Observed,
    ReachAddresses,
    Report,
    SignalTasks,
    StopOrder,
    TasksSeen,
)
from retinue.journal.egress import EgressLine
from retinue.plan.records import Dependency, GroupPlan, Plan, ReplicaPlan, ServicePlan, TrainerPlan
from retinue.supervise.fleet import Fleet, Seat
from retinue.supervise.happenings import (
    AgentJoined,
    AgentSaid,
    ChildSeen,
    Happening,
    LaunchExited,
    NodeGone,
    StopSignal,
    StubHello,
    Ticked,
    TrainerExited,
    TrainerStarted,
)
from retinue.supervise.run import Run
from retinue.supervise.state import RunState
from retinue.supervise.trainer import Surroundings
from retinue.terms.launch import LaunchSpec, StopSpec
from retinue.terms.outage import Outage
from retinue.terms.replica import (
    Exited,
    LaunchRefused,
    LivenessLost,
    Phase,
    Policy,
    ReadinessChanged,
    RestartPolicy,
    Started,
)
from retinue.terms.run import RunRecord


class Stuck(AssertionError):
    """Everybody waits and nothing is due."""


@dataclass
class Script:
    """How one incarnation behaves; a service has a list of them, the last one repeats."""

    starts_s: float = 0.1
    """Until `Started`; None in `refuses` means it does start."""
    refuses: str | None = None
    is_retryable: bool = True
    ready_s: float | None = 1.0
    """After the start; None: never."""
    exits_s: float | None = None
    """After the start; None: runs until stopped."""
    code: int = 1
    liveness_lost_s: float | None = None
    stop_s: float = 0.2
    """From the stop order to the exit; beyond the grace it is killed hard."""


def service(
    name: str, count: int = 1, *, node: str = "n1", after: tuple[Dependency, ...] = (), **fields: Any
) -> ServicePlan:
    return ServicePlan(
        name=name,
        kind="command",
        replicas=tuple(f"{name}/{index}" for index in range(count)),
        min_ready=fields.pop("min_ready", count),
        has_port=True,
        depends_on=after,
        **fields,
    )


def build_test_plan(
    services: list[ServicePlan],
    nodes: tuple[str, ...] = ("n1",),
    policy: Policy | None = None,
    trainer: TrainerPlan | None = None,
    lanes: list[tuple[str, ...]] | None = None,
    **fields: Any,
) -> Plan:
    policy = policy or Policy(
        restart=RestartPolicy(backoff_s=1.0, limit=3, stable_for_s=60.0, jitter=0.0), stop=StopSpec("TERM", 5.0)
    )
    replicas = []
    for entry in services:
        for index, key in enumerate(entry.replicas):
            node = nodes[index % len(nodes)]
            launch = LaunchSpec(
                replica=key,
                service=entry.name,
                index=index,
                incarnation=0,
                argv=("serve",),
                wants_port=True,
                log_path="{n}",
            )
            replicas.append(ReplicaPlan(key, entry.name, index, node, "all", launch, policy))
    lanes = lanes or [tuple(entry.name for entry in services)]
    return Plan(
        name="test",
        allocation=Allocation(
            tuple(Node(name, 8, 1000) for name in nodes),
            job_id=fields.pop("job_id", None),
            end_utc=fields.pop("end_utc", None),
        ),
        groups=(GroupPlan("all", nodes),),
        services=tuple(services),
        replicas=tuple(replicas),
        trainer=trainer or TrainerPlan(group="all", argv=("train",)),
        start_lanes=tuple(lanes),
        stop_lanes=tuple(reversed(lanes)),
        **fields,
    )


def see_child(child: dict[str, Any] | None) -> ChildSeen | None:
    """What the stub says of a child in its hello."""
    if child is None:
        return None
    return ChildSeen(child.get("pid", 2), child["running"], code=child.get("code"), signal=child.get("signal"))


@dataclass
class ScriptedNode:
    """One keeper and agent, in virtual time."""

    world: "World"
    name: str
    alive: dict[str, int] = field(default_factory=dict)
    """Replica -> incarnation that has a process."""
    pending: dict[str, int] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)
    ready: set[str] = field(default_factory=set)
    exited: dict[str, Exited] = field(default_factory=dict)
    published: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    gateway_port: int | None = None
    is_connected: bool = False
    refused_ports: set[int] = field(default_factory=set)
    tasks: int = 0
    """Slurm tasks of the trainer here."""
    told: list[str] = field(default_factory=list)
    """Signals that these were sent."""
    addresses: tuple[str, ...] = ()
    guard_off: str = ""
    reach: list[str] = field(default_factory=list)
    """Addresses that its guarded services may reach, as it was told."""
    reach_at_first_launch: list[str] | None = None

    def join(self) -> None:
        self.is_connected = True
        observed = [
            Observed(
                key,
                number,
                True,
                pid=1,
                port=9000,
                is_startup_passed=True,
                is_ready=key in self.ready,
                is_stopping=key in self.stopping,
            )
            for key, number in self.alive.items()
        ]
        observed += [
            Observed(key, item.incarnation, False, exited=item)
            for key, item in self.exited.items()
            if key not in self.alive
        ]
        hello = Hello(
            self.name,
            "0",
            "nonce",
            gateway_port=self.gateway_port,
            addresses=self.addresses,
            observed=tuple(observed),
            guard_off=self.guard_off,
        )
        self.world.post(AgentJoined(self.name, hello))

    def take(self, message: FromController) -> None:
        match message:
            case BindGateway(port=port):
                is_bound = port not in self.refused_ports
                self.gateway_port = port if is_bound else None
                self.say(GatewayBound(port, is_bound, "" if is_bound else "stranger"))
            case LaunchOrder(spec=spec):
                self._launch(spec)
            case StopOrder(replica=key, incarnation=number, grace_s=grace_s):
                self._stop(key, number, grace_s)
            case Membership(routes=routes):
                self.published = {
                    route.service: {(b.replica, b.incarnation) for b in route.backends} for route in routes
                }
            case ReachAddresses(addresses=addresses):
                self.reach.extend(addresses)
            case SignalTasks(signal=name):
                self._signal_tasks(name)
            case EndNode():
                self.alive.clear()
                self.is_connected = False
                self.world.after(0.1, lambda: self.world.end_node(self.name))

    def _signal_tasks(self, name: str) -> None:
        """Each task is told once; it ends `world.task_stop_s` later, or of KILL at once."""
        had = self.told.count(name)
        if name and self.tasks and not had:
            self.told.append(name)
            stop_s = 0.0 if name == "KILL" else self.world.task_stop_s
            if stop_s is not None:
                self.world.after(stop_s, self._end_tasks)
        self.say(TasksSeen(name, int(had or self.tasks > 0), self.tasks))

    def _end_tasks(self) -> None:
        self.tasks = 0
        if not any(node.tasks for node in self.world.nodes.values()) and self.world.client_s is not None:
            self.world.after(self.world.client_s, lambda: self.world.end_trainer(0, None))

    def say(self, message: Any) -> None:
        if self.is_connected:
            self.world.post(AgentSaid(self.name, message))

    def report(self, key: str, event: Any) -> None:
        self.say(Report(key, event))

    def _launch(self, spec: LaunchSpec) -> None:
        key, number = spec.replica, spec.incarnation
        if self.reach_at_first_launch is None:
            self.reach_at_first_launch = list(self.reach)
        if self.alive.get(key) == number or self.pending.get(key) == number:
            return
        assert key not in self.alive, f"{key}#{self.alive[key]} still lives when #{number} is launched"
        script = self.world.script_for(spec.service, number)
        self.pending[key] = number
        self.exited.pop(key, None)
        self.world.launched.append(f"{key}#{number}")
        self.world.after(script.starts_s, lambda: self._start(key, number, script))

    def _start(self, key: str, number: int, script: Script) -> None:
        if self.pending.get(key) != number:
            return
        del self.pending[key]
        if script.refuses is not None:
            self.report(key, LaunchRefused(number, script.refuses, script.is_retryable))
            return
        self.alive[key] = number
        self.report(key, Started(number, pid=number, port=9000 + number))
        if script.ready_s is not None:
            self.world.after(script.ready_s, lambda: self._become_ready(key, number))
        if script.exits_s is not None:
            self.world.after(script.exits_s, lambda: self.exit(key, number, Exited(number, code=script.code)))
        if script.liveness_lost_s is not None:
            self.world.after(script.liveness_lost_s, lambda: self._lose_liveness(key, number))

    def _become_ready(self, key: str, number: int) -> None:
        if self.alive.get(key) == number:
            self.ready.add(key)
            self.report(key, ReadinessChanged(number, True))

    def _lose_liveness(self, key: str, number: int) -> None:
        if self.alive.get(key) == number:
            self.report(key, LivenessLost(number, "no answer"))

    def _stop(self, key: str, number: int, grace_s: float) -> None:
        if self.pending.get(key) == number:
            del self.pending[key]
            self.report(key, LaunchRefused(number, "stopped before it was started"))
            return
        if self.alive.get(key) != number:
            return
        self.stopping.add(key)
        script = self.world.script_for(key.partition("/")[0], number)
        is_hard = script.stop_s > grace_s
        exit_event = Exited(number, signal=9 if is_hard else 15, was_asked=True, is_killed_hard=is_hard)
        self.world.after(min(script.stop_s, grace_s), lambda: self.exit(key, number, exit_event))

    def exit(self, key: str, number: int, event: Exited) -> None:
        if self.alive.get(key) != number:
            return
        del self.alive[key]
        self.ready.discard(key)
        self.stopping.discard(key)
        self.exited[key] = event
        self.report(key, event)


class World:
    """Implements every edge of the run."""

    def __init__(
        self, plan: Plan, scripts: dict[str, list[Script]] | None = None, trainer_s: float | None = 10.0
    ) -> None:
        self.plan, self.scripts, self.trainer_s = plan, scripts or {}, trainer_s
        self.trainer_code, self.trainer_stop_s = 0, 0.5
        self.task_stop_s: float | None = 0.5
        """From a trainer's tasks' signal to their end; None: they ignore it."""
        self.client_s: float | None = 0.1
        """From the last task's end to that of the trainer's first process; None: it waits to be told."""
        self.files_s = 0.05
        """Until the files that the trainer reads first are written."""
        self.now, self.started_utc = 1000.0, 1_000_000.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._timers: dict[str, int] = {}
        self.notes: list[str] = []
        self.outages: list[Outage] = []
        self.denied: list[EgressLine] = []
        self.orders: list[dict[str, Any]] = []
        self.launched: list[str] = []
        self.said: list[str] = []
        self._heard: dict[str, float] = {}
        self.saved: dict[str, Any] = {}
        self.exit_code: int | None = None
        self.trainer: dict[str, Any] | None = None
        self.launch: dict[str, Any] | None = None
        self.controller_starts = 1
        self.gateway_ports = (21001, 21002, 21003)
        self.launch_order: dict[str, Any] = {"op": "launch"}
        self.nodes = {node.name: ScriptedNode(self, node.name) for node in plan.allocation.nodes}
        self.clock = self.timers = self.agents = self.stub = self.journal = self.store = self
        self.run = self._build_run()

    def _build_run(self) -> Run:
        record = RunRecord("abc", "test", 0, "/runs/x", "/runs/x/attempt-0", "/tmp/n", "/home/u")
        return Run(self.plan, self, Fleet(self.plan, self, {}), Surroundings(self.plan, record, {}))

    # --- edges --------------------------------------------------------------------

    def now_s(self) -> float:
        return self.now

    def now_utc(self) -> float:
        return self.started_utc + self.now - 1000.0

    def set(self, name: str, due_s: float, happening: Happening) -> None:
        number = next(self._order)
        self._timers[name] = number
        starts = self.controller_starts

        def fire() -> None:
            if self._timers.get(name) == number and starts == self.controller_starts:
                del self._timers[name]
                self.handle(happening)

        heapq.heappush(self._heap, (max(due_s, self.now), number, fire))

    def cancel(self, name: str) -> None:
        self._timers.pop(name, None)

    def send(self, node: str, message: FromController) -> None:
        if self.nodes[node].is_connected:
            self.after(0.001, lambda: self.nodes[node].take(message))

    def expect(self, node: str) -> None:
        self._heard[node] = self.now

    def forget(self, node: str) -> None:
        self._heard.pop(node, None)

    def _find_silent(self) -> None:
        for node in self.nodes.values():
            if node.is_connected:
                self._heard[node.name] = self.now
        for name in [name for name, heard in self._heard.items() if self.now - heard >= 10.0]:
            self.forget(name)
            self.handle(NodeGone(name, "nothing heard for 10 s"))

    def note(self, subject: str, event: str, reason: str, before: str = "", after: str = "", detail: str = "") -> None:
        self.notes.append(f"{self.now - 1000:.1f} {subject} {event} {before}->{after} {reason}")

    def note_outage(self, outage: Outage) -> None:
        self.outages.append(outage)

    def deny(self, line: EgressLine) -> None:
        self.denied.append(line)

    def save(self, key: str, value: Any) -> None:
        self.saved[key] = value

    def say(self, text: str) -> None:
        self.said.append(text)

    def start_trainer(self, order: dict[str, Any]) -> None:
        starts = self.controller_starts
        self.after(self.files_s, lambda: self.order(order) if starts == self.controller_starts else None)

    def finish(self, exit_code: int) -> None:
        self.exit_code = exit_code

    def order(self, order: dict[str, Any]) -> None:
        self.orders.append(order)
        match order["op"]:
            case "launch":
                self.launch = {"running": True, "pid": 2}
                for node in self.nodes.values():
                    self.after(0.5, node.join)
            case "trainer":
                assert self.trainer is None, "the trainer is started once"
                self.trainer = {"running": True, "pid": 77}
                self.post(TrainerStarted(77))
                if self.trainer_s is not None:
                    self.after(self.trainer_s, lambda: self.end_trainer(self.trainer_code, None))
            case "signal_trainer" if order["signal"] == "KILL":
                self.end_trainer(None, 9)
            case "signal_trainer":
                self.after(self.trainer_stop_s, lambda: self.end_trainer(None, 15))
            case "signal_launch":
                self.after(0.1, lambda: self.post(LaunchExited(0, None)))

    # --- the world's own moves --------------------------------------------------------

    def script_for(self, name: str, incarnation: int) -> Script:
        scripts = self.scripts.get(name, [Script()])
        return scripts[min(incarnation, len(scripts)) - 1]

    def after(self, wait_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + wait_s, next(self._order), act))

    def post(self, happening: Happening) -> None:
        starts = self.controller_starts
        self.after(0.001, lambda: self.handle(happening) if starts == self.controller_starts else None)

    def handle(self, happening: Happening) -> None:
        if self.exit_code is None:
            self.run.handle(happening)
            self.check_invariants()

    def end_trainer(self, code: int | None, signal: int | None) -> None:
        if self.trainer is not None and self.trainer["running"]:
            self.trainer |= {"running": False, "code": code, "signal": signal}
            self.post(TrainerExited(code, signal))

    def end_node(self, name: str) -> None:
        if self.launch is not None and all(not node.is_connected for node in self.nodes.values()):
            self.launch = {"running": False, "code": 0, "signal": None}
            self.post(LaunchExited(0, None))

    def signal(self, name: str, count: int = 1, is_from_terminal: bool = False) -> None:
        self.post(StopSignal(name, count, is_from_terminal))

    def kill_controller(self, rejoin_s: float = 0.5) -> None:
        """The stub starts another one, which reads what was saved; agents dial in again."""
        self.controller_starts += 1
        self._timers.clear()
        for node in self.nodes.values():
            node.is_connected = False
        self.run = self._build_run()
        state = self.saved.get("run", RunState())
        seats: dict[str, Seat] = {
            key.removeprefix("replica:"): seat for key, seat in self.saved.items() if key != "run"
        }
        self.run.restore(state, seats)
        self.handle(StubHello(self.controller_starts, see_child(self.launch), see_child(self.trainer)))
        for node in self.nodes.values():
            self.after(rejoin_s, node.join)

    def start(self) -> None:
        self.handle(StubHello(1))
        self._tick()

    def _tick(self) -> None:
        if self.exit_code is None:
            self.handle(Ticked(0.0))
            self._find_silent()
            heapq.heappush(self._heap, (self.now + 1.0, next(self._order), self._tick))

    def run_until(self, condition: Callable[[], bool], limit_s: float = 100_000.0) -> None:
        """Let time pass until the condition holds."""
        until = self.now + limit_s
        while not condition():
            if not self._heap or self._heap[0][0] > until:
                raise Stuck(f"at {self.now - 1000:.1f} s; last notes: " + "\n".join(self.notes[-12:]))
            self.now, _, act = heapq.heappop(self._heap)
            act()

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        self.now = until

    def run_to_end(self) -> int:
        self.run_until(lambda: self.exit_code is not None)
        assert self.exit_code is not None
        assert not any(node.alive or node.pending for node in self.nodes.values()), "something was left running"
        return self.exit_code

    def phase(self, key: str) -> Phase:
        return self.run.fleet.seats[key].replica.phase

    def check_invariants(self) -> None:
        fleet = self.run.fleet
        for key, seat in fleet.seats.items():
            assert fleet.replicas[key] is seat.replica
            if seat.replica.phase.is_terminal:
                assert not seat.timers, f"{key} is over and has timers {seat.timers}"
        for name, plan in fleet.services.items():
            assert fleet.ready_count[name] == sum(fleet.replicas[key].is_there for key in plan.replicas)
