"""The agent of one node: obeys the controller, tells what happens, decides nothing.

Everything that matters is in the slots: one incarnation per replica. Orders may come
twice or late; the answer is the same. What the controller missed while it was away
it learns from the full state that every connection begins with.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from retinue.channel.messages import (
    AskFacts,
    BindGateway,
    EndNode,
    FromController,
    GatewayBound,
    GatewayFacts,
    LaunchOrder,
    Membership,
    NodeNote,
    Observed,
    Peer,
    Refused,
    Report,
    SignalTasks,
    StopOrder,
    TasksSeen,
    Welcome,
)
from retinue.node.exec_probe import is_probe_name
from retinue.node.facts_order import answer_facts
from retinue.node.incarnation import Incarnation
from retinue.node.memory import Remembered
from retinue.node.orders import (
    Bind,
    Bound,
    Reaped,
    Release,
    RoleRestarted,
    Signal,
    Spawned,
    SpawnRefused,
    TasksTold,
    TellTasks,
)
from retinue.node.outbox import Outbox
from retinue.node.site import Site
from retinue.terms.launch import LaunchSpec
from retinue.terms.replica import LivenessLost

FAILING_MAX = 64
"""Causes in one beat."""


class Gateway(Protocol):
    """The node's gateway."""

    def publish(self, membership: Membership) -> None: ...
    def tell_controller(self, is_there: bool) -> None: ...
    def drop(self, replica: str, incarnation: int, cause: str) -> None: ...


class Slots:
    """The slots of one node, on the running loop."""

    def __init__(
        self,
        site: Site,
        outbox: Outbox,
        gateway: Gateway,
        on_end: Callable[[str], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self.site = site
        self.by_replica: dict[str, Incarnation] = {}
        """Replica -> its newest incarnation, over or not."""
        self._leaving: dict[tuple[str, int], Incarnation] = {}
        """Followed by a newer one, not gone yet."""
        self.peers: dict[str, Peer] = {}
        """The gateways of other nodes, as far as this agent has heard of them."""
        self.gateway_port: int | None = None
        self.hop_port: int | None = None
        self.orphan_grace_s = site.join.orphan_grace_s
        self._outbox = outbox
        self._gateway = gateway
        self._on_end = on_end
        self._on_bug = on_bug
        self._tasks: set[asyncio.Task[None]] = set()

    def describe_failing(self) -> dict[str, str]:
        """Say why what is not ready is not: the last answer of its probes."""
        found: dict[str, str] = {}
        for replica, incarnation in self.by_replica.items():
            cause = incarnation.describe_failing()
            if cause and len(found) < FAILING_MAX:
                found[replica] = cause
        return found

    # --- the controller's orders -----------------------------------------------------

    def obey(self, message: FromController) -> None:
        """Carry out one message; returns at once."""
        match message:
            case LaunchOrder(spec=spec):
                self.launch(spec)
            case StopOrder():
                self.stop(message)
            case Membership(peers=peers):
                self.peers |= {peer.node: peer for peer in peers}
                self._gateway.publish(message)
            case BindGateway(port=port):
                self._bind_gateway(port)
            case SignalTasks(signal=name, spared_step=step):
                self.site.keeper.send(TellTasks(name, step))
            case AskFacts():
                self.start(answer_facts(self.site, message, self._outbox.say_now))
            case EndNode(reason=reason):
                self._on_end(reason)
            case Refused(reason=reason):
                self._on_end(f"the controller refused this node: {reason}")
            case Welcome(orphan_grace_s=grace_s):
                self.orphan_grace_s = grace_s

    def launch(self, spec: LaunchSpec) -> None:
        """Start one incarnation, when every older one of its replica is gone."""
        present = self.by_replica.get(spec.replica)
        if present is not None and spec.incarnation <= present.spec.incarnation:
            if spec.incarnation == present.spec.incarnation:
                present.tell_again()
            return
        self._follow(present, Incarnation(self.site, spec))

    def stop(self, order: StopOrder) -> None:
        """Run the ladder on one incarnation; one whose launch never arrived is refused for good."""
        number = parse_signal(order.signal)
        present = self.by_replica.get(order.replica)
        if present is None or order.incarnation > present.spec.incarnation:
            spec = LaunchSpec(order.replica, service="", index=0, incarnation=order.incarnation, argv=())
            unborn = Incarnation(self.site, spec)
            unborn.stop(number, order.grace_s)
            self._follow(present, unborn)
        elif order.incarnation == present.spec.incarnation:
            if present.over.is_set():
                present.tell_again()
            else:
                present.stop(number, order.grace_s)

    def _follow(self, before: Incarnation | None, following: Incarnation) -> None:
        self.by_replica[following.spec.replica] = following
        self.start(self._run_after(before, following))

    async def _run_after(self, before: Incarnation | None, following: Incarnation) -> None:
        """Run it when the one before it is gone, tree and all: never two at once."""
        if before is not None:
            key = (before.spec.replica, before.spec.incarnation)
            self._leaving[key] = before
            if not before.over.is_set():
                stop = before.spec.stop
                before.stop(parse_signal(stop.signal), stop.grace_s)
                await before.over.wait()
            del self._leaving[key]
            before.forget()
        await following.run()

    def _bind_gateway(self, port: int) -> None:
        if self.gateway_port == port:
            self._outbox.say(GatewayBound(port=port, is_bound=True, hop_port=self.hop_port))
            return
        self.site.keeper.send(Bind(port, wants_hop=self.site.join.node_count > 1))

    # --- the keeper's word -------------------------------------------------------------

    def take(self, packet: Spawned | SpawnRefused | Reaped | Bound | RoleRestarted | TasksTold) -> None:
        """Take one packet that is about life as it goes on."""
        match packet:
            case Bound(port=port, is_bound=is_bound, holder=holder, hop_port=hop_port):
                if is_bound:
                    self.gateway_port, self.hop_port = port, hop_port
                self._outbox.say(GatewayBound(port=port, is_bound=is_bound, holder=holder, hop_port=hop_port))
            case RoleRestarted(role=role, starts=starts, reason=reason):
                what = f"{role} was started again on {self.site.join.node} (start {starts})"
                self._outbox.say(NodeNote(what=what, reason=reason, role=role))
            case TasksTold(signal=name, told=told, live=live):
                self._outbox.say_now(TasksSeen(name, told, live))
            case Spawned() | SpawnRefused() | Reaped():
                self._take_life(packet)

    def _take_life(self, packet: Spawned | SpawnRefused | Reaped) -> None:
        if is_probe_name(packet.replica):
            self.site.exec_probes.take(packet)
            return
        present = self._leaving.get((packet.replica, packet.incarnation)) or self.by_replica.get(packet.replica)
        if present is not None and present.spec.incarnation == packet.incarnation:
            present.take(packet)
        elif isinstance(packet, Spawned):
            # Given up while its exec hung: it must not run beside what followed it.
            self.site.keeper.send(Signal(packet.replica, packet.incarnation, signal.SIGKILL))
        elif isinstance(packet, Reaped):
            self.site.keeper.send(Release(packet.replica, packet.incarnation))

    def adopt(self, incarnation: Incarnation, life: Coroutine[Any, Any, None]) -> None:
        """Take over an incarnation that an earlier agent launched."""
        self.by_replica[incarnation.spec.replica] = incarnation
        self.start(life)

    # --- what it knows -------------------------------------------------------------------

    def observe(self) -> tuple[Observed, ...]:
        """Say all that is known, for a new connection.

        Shape: a refused launch is in no record of this form; `retell` says it again.
        """
        self._outbox.forget()
        return tuple(_observe(item) for item in self.by_replica.values() if item.refused is None)

    def note_controller(self, is_there: bool) -> None:
        """There is a controller from now on, which hears what the full state cannot hold; or there is none."""
        self._gateway.tell_controller(is_there)
        if is_there:
            self.retell()

    def retell(self) -> None:
        """Say again what the full state cannot hold, then what happened since it was built."""
        for replica, item in self.by_replica.items():
            if item.refused is not None:
                self._outbox.say(Report(replica, item.refused))
            elif item.is_running and item.liveness_lost and item.stop_clock is None:
                self._outbox.say(Report(replica, LivenessLost(item.spec.incarnation, item.liveness_lost)))
        self._outbox.flush()

    def remember(self) -> tuple[Remembered, ...]:
        """Say what the next agent of this node has to know."""
        return tuple(_remember(item) for item in self.by_replica.values())

    def pass_facts(self, facts: GatewayFacts) -> None:
        """Pass on what the gateway counted."""
        self._outbox.say_now(facts)

    # --- its own life ----------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until `close`; a failure is a bug and is told to `on_bug`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def close(self) -> None:
        """End all tasks; processes are left as they are."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)


def parse_signal(name: str) -> int:
    """Turn a name without SIG into its number; an unknown one is TERM, so that a stop always begins."""
    return int(getattr(signal.Signals, f"SIG{name.upper().removeprefix('SIG')}", signal.SIGTERM))


def _observe(item: Incarnation) -> Observed:
    state = item.prober.state if item.prober else None
    return Observed(
        replica=item.spec.replica,
        incarnation=item.spec.incarnation,
        is_running=item.is_running,
        pid=item.pid,
        host_pid=item.host_pid,
        port=item.port,
        is_startup_passed=state is not None and state.is_startup_passed,
        is_ready=item.is_running and state is not None and state.is_ready,
        is_stopping=item.stop_clock is not None,
        exited=item.exited,
    )


def _remember(item: Incarnation) -> Remembered:
    seen = _observe(item)
    clock = item.stop_clock
    return Remembered(
        replica=seen.replica,
        incarnation=seen.incarnation,
        port=seen.port,
        started_s=item.started_s,
        is_startup_passed=seen.is_startup_passed,
        is_ready=seen.is_ready,
        liveness_lost=item.liveness_lost,
        stop_number=clock.number if clock else 0,
        stop_deadline_s=clock.deadline_s if clock else 0.0,
        exited=item.exited,
        refused=item.refused,
    )
