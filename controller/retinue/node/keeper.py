"""The keeper: parent, reaper and memory of everything that runs on a node. It decides nothing about services.

Pid 1 of the node's namespaces, or a plain subreaper where those are refused. It
starts the agent and the gateway again when they die, forks services on the
agent's order and holds their descriptors, so that no death but its own loses a
service. Single-threaded, one poll loop, standard library and msgspec only.
"""

import os
import resource
import select
import signal
import socket
import time
from functools import partial
from pathlib import Path

from retinue.egress.trial import find_machine, find_obstacle
from retinue.node import kernel
from retinue.node.agent_role import AgentRole
from retinue.node.census import build_census, kill_left, kill_namespace
from retinue.node.descriptors import close_fds
from retinue.node.gateway_role import GatewayRole
from retinue.node.guard_role import GuardRole
from retinue.node.kept import Answers, KeptIncarnation, KeptTable
from retinue.node.orders import (
    AgentBeat,
    AskGpus,
    Bind,
    Bound,
    DeniedSeen,
    End,
    GpusTold,
    Inventory,
    InventoryDone,
    Release,
    RoleRestarted,
    Signal,
    Spawn,
    TasksTold,
    TellAddresses,
    TellTasks,
    ToKeeper,
)
from retinue.node.outer_link import OuterLink
from retinue.node.roles import limit_log
from retinue.node.settings import KEEPER_SPENT, NodeSettings
from retinue.node.wakeup import catch_signals, read_signals, reap_children
from retinue.terms.record import from_json

_TICK_S = 1.0
_STALL_S = 1.0
"""A loop that comes back this much later than it wanted was stopped or starved; nobody's silence counts then."""


def run_keeper(settings: NodeSettings, control_fd: int) -> int:
    """Keep the node until it is to end, kill all of it, and return the exit code.

    Shape: 0 the end was asked for, by agent, outer process or its death; 4 the agent's restarts are spent.
    """
    _raise_descriptor_limit()
    if settings.has_namespace:
        # A service may signal pid 1 of its namespace; the order to end comes over the socket.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        wakeup_fd = catch_signals((signal.SIGCHLD,))
        kernel.set_death_signal(signal.SIGKILL)
        # Its children get no capability of it by exec; the egress supervisor, a plain fork, has it.
        kernel.drop_ambient_capabilities()
    else:
        wakeup_fd = catch_signals((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        kernel.become_subreaper()
        kernel.set_death_signal(signal.SIGTERM)
    # The outer process may have died before the death signal was armed: then the socket is at its end.
    link = OuterLink(socket.socket(fileno=control_fd), settings.has_namespace)
    link.wait_for_greeting()
    return _Keeper(settings, link, wakeup_fd).run()


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Keeper:
    """The loop and what it owns."""

    def __init__(self, settings: NodeSettings, link: OuterLink, wakeup_fd: int) -> None:
        self._settings = settings
        self._link = link
        self._wakeup_fd = wakeup_fd
        off = find_obstacle(settings.has_namespace)
        self._guard = GuardRole(settings, None if off else find_machine(), off)
        self._kept = KeptTable(settings.tags, Path(settings.node_dir), link.ask_host_pid, self._guard)
        self._agent = AgentRole(settings)
        self._gateway = GatewayRole(settings)
        self._end_reason = ""

    def run(self) -> int:
        while not (reason := self._link.end_reason or self._end_reason):
            self._run_once()
        self._link.tell_ending(reason, self._agent.is_hung)
        self._kill_all()
        return KEEPER_SPENT if self._agent.is_spent else 0

    def _run_once(self) -> None:
        wait_s = self._compute_wait_s(time.monotonic())
        asked_s = time.monotonic()
        ready = self._poll(wait_s)
        now_s = time.monotonic()
        has_stalled = now_s - asked_s > wait_s + _STALL_S
        if self._wakeup_fd in ready:
            self._take_signals(read_signals(self._wakeup_fd))
        if self._link.fileno() in ready:
            self._link.read()
        self._serve_agent(now_s)
        for answer in self._link.take_tasks():
            self._agent.send(TasksTold(answer.signal, answer.told, answer.live))
        for text in self._link.take_gpus():
            self._agent.send(GpusTold(text))
        self._gateway.take_beats(now_s)
        self._guard.hear(now_s)
        for fd in ready.intersection(self._guard.list_handovers()):
            self._guard.take_handover(fd)
        for incarnation in self._kept.list_unsettled():
            if incarnation.child.status_fd in ready:
                self._answer(self._kept.settle(incarnation))
        if has_stalled:
            self._agent.forgive_silence(now_s)
            self._gateway.beats.forgive(now_s)
            self._guard.forgive(now_s)
        self._tick(now_s)

    def _poll(self, wait_s: float) -> set[int]:
        poller = select.poll()
        poller.register(self._wakeup_fd, select.POLLIN)
        poller.register(self._link.fileno(), select.POLLIN)
        if self._agent.end is not None:
            poller.register(self._agent.end, select.POLLIN | (select.POLLOUT if self._agent.has_waiting() else 0))
        if self._gateway.beat_fd is not None:
            poller.register(self._gateway.beat_fd, select.POLLIN)
        if self._guard.end is not None:
            poller.register(self._guard.end, select.POLLIN | (select.POLLOUT if self._guard.has_waiting() else 0))
        for fd in self._guard.list_handovers():
            poller.register(fd, select.POLLIN)
        for incarnation in self._kept.list_unsettled():
            poller.register(incarnation.child.status_fd, select.POLLIN)
        return {fd for fd, _ in poller.poll(wait_s * 1000)}

    def _compute_wait_s(self, now_s: float) -> float:
        dues = (self._agent.next_due_s(), self._gateway.next_due_s(), self._guard.next_due_s())
        return max(0.0, min([_TICK_S, *(due - now_s for due in dues if due is not None)]))

    def _tick(self, now_s: float) -> None:
        if self._agent.check(now_s):
            self._take_agent_exit(None, now_s)
        if self._agent.start_if_due(now_s):
            self._greet_agent()
        reason = self._gateway.tick(now_s)
        if reason is not None:
            self._agent.send(RoleRestarted("gateway", self._gateway.starts, reason))
        reason = self._guard.tick(now_s)
        if reason is not None:
            self._agent.send(RoleRestarted("egress supervisor", self._guard.starts, reason))
        if self._agent.end is not None and (lines := self._guard.take_denied(now_s)):
            self._agent.send(DeniedSeen(lines))
        for name in ("agent", "gateway"):
            limit_log(self._settings, name)

    # --- children -----------------------------------------------------------------------

    def _take_signals(self, numbers: frozenset[int]) -> None:
        self._reap()
        if not self._settings.has_namespace and numbers - {signal.SIGCHLD}:
            self._end_reason = self._end_reason or "asked by a signal, or the outer process died"

    def _reap(self) -> None:
        """Collect every dead child: roles, services, and orphans of anybody."""
        for pid, status in reap_children():
            now_s = time.monotonic()
            if pid == self._agent.pid:
                self._take_agent_exit(status, now_s)
            self._gateway.take_exit(pid, status, now_s)
            self._guard.take_exit(pid, status, now_s)
            self._answer(self._kept.take_exit(pid, status))

    def _take_agent_exit(self, status: int | None, now_s: float) -> None:
        self._serve_agent(now_s)  # Its last orders: a service it wanted runs, an end it wanted happens.
        self._agent.take_exit(status, now_s)
        if self._agent.is_spent:
            limit = self._settings.agent_limit
            self._end_reason = f"the agent died {limit + 1} times, last: {self._agent.last_reason}"

    def _greet_agent(self) -> None:
        """Tell a new agent all that is kept, and hand it copies of all that is held."""
        greeting = self._link.greeting
        inventory = Inventory(
            starts=self._agent.starts,
            kept=self._kept.describe(),
            gateway_port=self._gateway.port,
            hop_port=self._gateway.hop_port,
            keeper_pid=os.getpid(),
            keeper_host_pid=greeting.keeper_host_pid,
            outer_pid=greeting.outer_pid,
            has_namespace=self._settings.has_namespace,
            weaker=self._settings.weaker,
            agent_host_pid=self._link.ask_host_pid(self._agent.pid),
            guard_off=self._guard.off,
        )
        self._agent.send(inventory)
        for handover, incarnation in self._kept.build_handovers():
            self._agent.send(handover, partial(self._list_fds, incarnation))
        self._agent.send(InventoryDone())
        self._guard.tell_all_denied()
        if self._agent.starts > 1:
            self._agent.send(RoleRestarted("agent", self._agent.starts, self._agent.last_reason))

    def _list_fds(self, incarnation: KeptIncarnation) -> tuple[int, ...] | None:
        return incarnation.fds if self._kept.is_kept(incarnation) else None

    def _answer(self, answers: Answers) -> None:
        for answer in answers:
            self._agent.send(answer)

    # --- orders -------------------------------------------------------------------------

    def _serve_agent(self, now_s: float) -> None:
        self._agent.flush()
        while packet := self._agent.receive(now_s):
            self._obey(*packet, now_s)

    def _obey(self, order: ToKeeper, fds: list[int], now_s: float) -> None:
        if not isinstance(order, Spawn):
            close_fds(fds)
        match order:
            case Spawn():
                self._answer(self._kept.spawn(order, fds))
            case Signal():
                self._kept.signal(order)
            case Release():
                self._kept.release(order)
            case Bind():
                self._bind(order, now_s)
            case AgentBeat(is_hung=is_hung):
                self._agent.take_beat(now_s, is_hung)
            case TellAddresses(addresses=addresses):
                self._guard.tell(addresses)
            case TellTasks(signal=name, spared_step=step):
                self._link.tell_tasks(name, step)
            case AskGpus():
                self._link.ask_gpus()
            case End(reason=reason):
                self._end_reason = self._end_reason or reason

    def _bind(self, order: Bind, now_s: float) -> None:
        error = self._gateway.bind(order.port, order.wants_hop, now_s)
        holder = ""
        if error is not None:
            holder = f"{error.strerror}: {self._link.ask_holder(order.port) or 'holder unknown'}"
        self._agent.send(Bound(order.port, error is None, holder, self._gateway.hop_port))

    # --- the end ------------------------------------------------------------------------

    def _kill_all(self) -> None:
        limit_s = self._settings.hung_limit_s if self._agent.is_hung else self._settings.end_limit_s
        if self._settings.has_namespace:
            kill_namespace(self._reap_silently, limit_s)
            return
        census = build_census(self._settings.tags, (os.getppid(),), root=os.getpid())
        kill_left(census, self._reap_silently, limit_s)

    def _reap_silently(self) -> None:
        for pid, status in reap_children():
            self._kept.take_exit(pid, status)


def main(argv: list[str]) -> int:
    """`keeper SETTINGS_FILE CONTROL_FD`; only the outer process runs this."""
    settings = from_json(Path(argv[0]).read_bytes(), NodeSettings)
    return run_keeper(settings, int(argv[1]))
