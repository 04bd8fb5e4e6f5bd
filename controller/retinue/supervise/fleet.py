"""Every replica of the run: its state, its seat, and the carrying out of decisions.

The only caller of `decide`. A decision is saved before it is acted on, so a
controller that dies in between is continued by the next one, never repeated.
"""

from collections import deque
from collections.abc import Mapping

from retinue.channel.messages import LaunchOrder, Observed, StopOrder
from retinue.lifecycle.decide import decide
from retinue.plan.again import place_again
from retinue.plan.records import Plan
from retinue.supervise.counts import Counts
from retinue.supervise.edges import Edges
from retinue.supervise.happenings import ReplicaTimer
from retinue.supervise.outages import close_outage, find_outage, keep_outage
from retinue.supervise.seat import Seat, find_next_timers, remember
from retinue.terms.record import replace
from retinue.terms.replica import (
    AnyAction,
    AnyEvent,
    CancelTimer,
    DependenciesReady,
    Exhausted,
    Exited,
    Launch,
    LaunchRefused,
    NodeLost,
    Phase,
    PlaceAgain,
    Publish,
    ReadinessChanged,
    Replica,
    SetTimer,
    Started,
    StartupPassed,
    Stop,
    TimerFired,
    Withdraw,
)


class Fleet:
    """All seats, keyed by replica id, in manifest order."""

    def __init__(self, plan: Plan, edges: Edges, secrets: Mapping[str, Mapping[str, str]]) -> None:
        self.plan = plan
        self.edges = edges
        self.secrets = secrets
        """Service -> environment name -> resolved value; only ever sent over the channel."""
        self.seats: dict[str, Seat] = {
            place.id: Seat(replica=Replica(id=place.id, policy=place.policy), place=place) for place in plan.replicas
        }
        self.replicas: dict[str, Replica] = {key: seat.replica for key, seat in self.seats.items()}
        self.services = {service.name: service for service in plan.services}
        self.counts = Counts({service.name: len(service.replicas) for service in plan.services})
        self._on_node: dict[str, dict[str, None]] = {}
        """Node -> replica ids placed there."""
        for place in plan.replicas:
            self._on_node.setdefault(place.node, {})[place.id] = None
        self._has_new_phases = True
        self.shared_env: dict[str, str] = {}
        """What every service learns of the run once its gateways are bound: the services' URLs, the node lists."""
        self.lost_nodes: set[str] = set()
        self.exhausted: deque[tuple[str, str]] = deque()
        """(replica id, reason) of replicas that will not be tried again; the run takes them from here."""
        self.launched_again: deque[str] = deque()
        """Services that got a new incarnation; the run restarts those that asked for it."""
        self.new_routes: set[str] = {node.name for node in plan.allocation.nodes}
        """Nodes with a replica that was published, withdrawn or given up since the gateways were last told."""
        self._events: deque[tuple[str, AnyEvent]] = deque()

    # --- questions -----------------------------------------------------------

    @property
    def ready_count(self) -> Mapping[str, int]:
        """Service -> replicas that are ready, or have completed: what `min_ready` is compared with."""
        return self.counts.there

    def of_service(self, service: str) -> list[Seat]:
        return [self.seats[key] for key in self.services[service].replicas]

    def on_node(self, node: str) -> list[Seat]:
        return [self.seats[key] for key in self._on_node.get(node, ())]

    def is_over(self) -> bool:
        return not self.counts.live

    def take_new_phases(self) -> bool:
        """Say whether any phase changed since the last call."""
        has_new, self._has_new_phases = self._has_new_phases, False
        return has_new

    # --- the one way a replica changes ----------------------------------------

    def apply(self, key: str, event: AnyEvent) -> None:
        """Decide on one event, save, act; events that acting causes are applied before this returns."""
        self._events.append((key, event))
        if len(self._events) > 1:
            return
        while self._events:
            self._apply_one(*self._events[0])
            self._events.popleft()

    def _apply_one(self, key: str, event: AnyEvent) -> None:
        seat = self.seats.get(key)
        if seat is None:
            self.edges.journal.note(key, type(event).__name__, "no such replica in the plan; ignored")
            return
        now_s = self.edges.clock.now_s()
        decision = decide(seat.replica, event, now_s)
        before, after = seat.replica.phase, decision.replica.phase
        if getattr(event, "incarnation", None) == seat.replica.incarnation:
            seat = remember(seat, event)
        changed_utc = seat.changed_utc if after is before else self.edges.clock.now_utc()
        timers = find_next_timers(seat.timers, decision.actions, event, now_s)
        seat = replace(seat, replica=decision.replica, changed_utc=changed_utc, timers=timers)
        outage = find_outage(before, seat, event, decision.reason, self.edges.clock.now_utc())
        seat = keep_outage(seat, outage)
        if outage is not None:
            self.edges.journal.note_outage(outage)
        self._seat(key, seat)
        self.edges.store.save(f"replica:{key}", seat)
        if decision.actions or after is not before:
            detail = event.last_lines if isinstance(event, Exited) else ""
            self.edges.journal.note(
                key, type(event).__name__, decision.reason, before=before.value, after=after.value, detail=detail
            )
        for action in decision.actions:
            self._act(key, action, decision.reason)

    def close_outages(self) -> None:
        """The run is over: what lasts of the outages has an end too."""
        for key, seat in self.seats.items():
            if seat.outage is not None:
                self.edges.journal.note_outage(close_outage(seat.outage, self.edges.clock.now_utc()))
                self.seats[key] = replace(seat, outage=None)

    def _seat(self, key: str, seat: Seat) -> None:
        """Put a seat in its place and keep the counts right."""
        before, after = self.replicas[key], seat.replica
        if seat.place.node != self.seats[key].place.node:
            del self._on_node[self.seats[key].place.node][key]
            self._on_node.setdefault(seat.place.node, {})[key] = None
        self.seats[key] = seat
        self.replicas[key] = seat.replica
        if after.phase is not before.phase:
            self._has_new_phases = True
            self.counts.move(seat.place.service, before, after)

    def _act(self, key: str, action: AnyAction, reason: str) -> None:
        seat = self.seats[key]
        match action:
            case Launch(incarnation=incarnation):
                if incarnation > 1:
                    self.launched_again.append(seat.place.service)
                if seat.place.node in self.lost_nodes:
                    self._events.append((key, NodeLost(incarnation, f"node {seat.place.node} is lost")))
                else:
                    self._send_launch(seat)
            case Stop(incarnation=incarnation, signal=signal, grace_s=grace_s):
                order = StopOrder(replica=key, incarnation=incarnation, signal=signal, grace_s=grace_s, reason=reason)
                self.edges.agents.send(seat.place.node, order)
            case Publish() | Withdraw():
                self.new_routes.add(seat.place.node)
            case SetTimer(incarnation=incarnation, timer=timer):
                happening = ReplicaTimer(key, TimerFired(incarnation=incarnation, timer=timer))
                self.edges.timers.set(f"{key} {timer}", seat.timers[timer], happening)
            case CancelTimer(timer=timer):
                self.edges.timers.cancel(f"{key} {timer}")
            case PlaceAgain():
                self._place_again(seat)
            case Exhausted():
                self.exhausted.append((key, reason))
                self.new_routes.add(seat.place.node)

    def _send_launch(self, seat: Seat) -> None:
        incarnation = seat.replica.incarnation
        launch = seat.place.launch
        spec = replace(
            launch,
            incarnation=incarnation,
            env={**self.shared_env, **launch.env},
            secrets={**launch.secrets, **self.secrets.get(seat.place.service, {})},
            log_path=launch.log_path.replace("{n}", str(incarnation)),
        )
        self.edges.agents.send(seat.place.node, LaunchOrder(spec=spec))

    def _place_again(self, seat: Seat) -> None:
        key = seat.replica.id
        places = tuple(
            other.place for other in self.seats.values() if other is not seat and not other.replica.phase.is_terminal
        )
        place = place_again(self.plan, key, frozenset(self.lost_nodes), places)
        if isinstance(place, str):
            refusal = LaunchRefused(incarnation=seat.replica.incarnation, cause=place, retryable=False)
            self._events.append((key, refusal))
            return
        self._seat(key, replace(seat, place=place))
        self.edges.store.save(f"replica:{key}", self.seats[key])
        self.edges.journal.note(key, "PlacedAgain", place.why)
        if seat.replica.incarnation > 0:
            self._events.append((key, DependenciesReady(incarnation=seat.replica.incarnation)))
        else:
            self._has_new_phases = True

    # --- after a controller restart, or when an agent comes back -----------------

    def restore(self, seats: Mapping[str, Seat]) -> None:
        """Take over what the last controller saved, timers included."""
        for key, seat in seats.items():
            if key not in self.seats:
                continue
            self._seat(key, seat)
            for timer, due_s in seat.timers.items():
                fired = TimerFired(incarnation=seat.replica.incarnation, timer=timer)
                self.edges.timers.set(f"{key} {timer}", due_s, ReplicaTimer(key, fired))

    def reconcile(self, node: str, observed: tuple[Observed, ...]) -> None:
        """Make what an agent sees and what we believe agree, by events and by repeated orders."""
        seen = {item.replica: item for item in observed}
        for seat in self.on_node(node):
            self._reconcile_one(seat, seen.pop(seat.replica.id, None))
        for item in seen.values():
            if item.is_running:
                self._stop_unwanted(node, item, "not placed on this node")

    def _reconcile_one(self, seat: Seat, item: Observed | None) -> None:
        replica, key = seat.replica, seat.replica.id
        is_live = replica.phase in (Phase.STARTING, Phase.READY, Phase.UNREADY, Phase.STOPPING)
        if item is None or item.incarnation < replica.incarnation:
            if not is_live:
                return
            if replica.phase is Phase.STARTING and not replica.is_started:
                self._send_launch(seat)
                return
            self.apply(key, Exited(incarnation=replica.incarnation, rung="unknown to its agent"))
            return
        if item.exited is not None:
            self.apply(key, item.exited)
            return
        if not item.is_running:
            return
        if item.incarnation > replica.incarnation or not is_live:
            self._stop_unwanted(seat.place.node, item, f"the controller has it {replica.phase.value}")
            return
        self._adopt(key, item)
        if self.seats[key].replica.phase is Phase.STOPPING and not item.is_stopping:
            stop = replica.policy.stop
            order = StopOrder(key, item.incarnation, stop.signal, stop.grace_s, "stop repeated after a reconnect")
            self.edges.agents.send(seat.place.node, order)

    def _adopt(self, key: str, item: Observed) -> None:
        number = item.incarnation
        replica = self.seats[key].replica
        if not replica.is_started:
            self.apply(key, Started(number, pid=item.pid, host_pid=item.host_pid, port=item.port))
        if item.is_startup_passed and not self.seats[key].replica.is_startup_passed:
            self.apply(key, StartupPassed(number))
        if replica.policy.has_readiness and item.is_ready != (self.seats[key].replica.phase is Phase.READY):
            self.apply(key, ReadinessChanged(number, item.is_ready, "seen when the agent connected"))

    def _stop_unwanted(self, node: str, item: Observed, why: str) -> None:
        order = StopOrder(item.replica, item.incarnation, "TERM", 5.0, f"not wanted: {why}")
        self.edges.agents.send(node, order)
