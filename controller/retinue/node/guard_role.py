"""The keeper's egress guard: every listener, the slate, and a supervisor for as long as something is guarded.

A call that waits for an answer waits for whichever supervisor comes next, so one that dies or
hangs costs its callers a moment. It has no budget, is forked and not executed (no file has to be
read while services wait), and nothing here blocks.
"""

import os
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from socket import socket

from retinue.egress import notify
from retinue.egress.handover import Handover
from retinue.egress.ledger import Ledger
from retinue.egress.numbers import Machine
from retinue.egress.records import FromSupervisor, Ready, Seen, Tell, ToSupervisor, Watch
from retinue.egress.supervisor import run_supervisor
from retinue.node.descriptors import build_pair, receive_packet, send_packet
from retinue.node.orders import PROBE_MARK
from retinue.node.roles import REAP_LIMIT_S, Beats, describe_end, kill_role
from retinue.node.settings import NodeSettings
from retinue.node.spawn import Child, Command, SpawnError, Step, spawn
from retinue.terms.egress import Denied, EgressRule
from retinue.terms.record import DecodeError

_BACKOFF_S = (0.0, 0.0, 0.1, 0.5, 1.0)
"""Before the n-th start in a row that did not live for long: callers wait meanwhile."""
_LONG_S = 10.0
_LINES_MAX = 200
_ADDRESSES_MAX = 500
"""In one packet."""
_DROP_REST_S = 1.0
_TELL_REST_S = 0.5

Fork = Callable[[Machine, int, int], None]


@dataclass(slots=True)
class _Tree:
    """One guarded spawn."""

    key: int
    replica: str
    rule: EgressRule
    listener: int


@dataclass(slots=True)
class Expected:
    """A child that is to hand its listener over."""

    handover: Handover
    replica: str
    rule: EgressRule
    pid: int = 0


@dataclass(slots=True)
class GuardRole:
    """Holds the listeners; at most one supervisor at a time."""

    settings: NodeSettings
    machine: Machine | None
    """None: the guard does not work here, and nothing is guarded."""
    off: str
    """Why it does not; empty when it does."""
    starts: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    """All that was denied on this node."""
    run: Fork = run_supervisor
    """What the fork does; tests put others here."""
    _expected: dict[int, Expected] = field(default_factory=dict)
    """By the keeper's end of the handover."""
    _trees: dict[int, _Tree] = field(default_factory=dict)
    """By key."""
    _addresses: dict[str, None] = field(default_factory=dict)
    _next_key: int = 1
    _slate: int = -1
    _child: Child | None = None
    _end: socket | None = None
    _beats: Beats = field(default_factory=Beats)
    _killed_s: float | None = None
    _due_s: float = 0.0
    _drop_due_s: float = 0.0
    _tell_due_s: float = 0.0
    _failures: int = 0
    _reason: str = ""
    _outbox: deque[tuple[ToSupervisor, int | None]] = field(default_factory=deque)
    """(packet, key of the tree whose listener goes with it)"""

    # --- a service that is being forked --------------------------------------------------------

    def expect(self, replica: str, rule: EgressRule | None) -> Expected | None:
        """Get ready to guard a child; None when it is not to be guarded, or cannot be here.

        Errors: OSError when no socketpair can be made.
        """
        if rule is None or self.machine is None:
            return None
        return Expected(Handover(self.machine, rule.udp), replica.partition(PROBE_MARK)[0], rule)

    def forked(self, expected: Expected, pid: int) -> None:
        """The child is there: its listener will come."""
        expected.pid = pid
        expected.handover.forked()
        self._expected[expected.handover.fileno()] = expected

    def list_handovers(self) -> list[int]:
        return list(self._expected)

    def take_handover(self, fd: int) -> None:
        """Take one child's listener, and have its calls answered; a child that failed says so itself."""
        expected = self._expected.pop(fd)
        try:
            listener = expected.handover.take(expected.pid)
            if listener is not None:
                tree = _Tree(self._next_key, expected.replica, expected.rule, listener)
                self._next_key += 1
                self._trees[tree.key] = tree
                self._say(Watch(tree.key, tree.replica, tree.rule), tree.key)
        except OSError:
            # Closing the end refuses the child: it must not run without its guard.
            pass
        finally:
            expected.handover.close()

    def tell(self, addresses: tuple[str, ...]) -> None:
        """Learn addresses of the allocation's nodes; none is ever forgotten."""
        fresh = [address for address in addresses if address not in self._addresses]
        self._addresses.update(dict.fromkeys(fresh))
        self._say_addresses(fresh)

    def take_denied(self, now_s: float) -> tuple[Denied, ...]:
        """Take what the agent has not been told yet; not more often than it may cost."""
        if now_s < self._tell_due_s or not self.ledger.has_changed:
            return ()
        self._tell_due_s = now_s + _TELL_REST_S
        return tuple(self.ledger.take_changed(_LINES_MAX))

    def tell_all_denied(self) -> None:
        """Have everything taken again: there is a new agent."""
        self.ledger.put_back(self.ledger.list_all())

    # --- its supervisor ------------------------------------------------------------------------

    @property
    def end(self) -> socket | None:
        return self._end

    def has_waiting(self) -> bool:
        return bool(self._outbox)

    def next_due_s(self) -> float | None:
        """When something has to be done, if it is known."""
        return self._due_s if self._child is None and self._trees else None

    def forgive(self, now_s: float) -> None:
        """Restart the clock: it was the keeper that did not run."""
        self._beats.forgive(now_s)

    def hear(self, now_s: float) -> None:
        """Read what it says; whatever it says is a sign of life."""
        while self._end is not None:
            try:
                packet = receive_packet(self._end, FromSupervisor)
            except BlockingIOError:
                return
            except (DecodeError, OSError) as error:
                self._kill(f"sent what is no packet: {error}", now_s)
                return
            if packet is None:  # It died, or is about to: its status comes with SIGCHLD.
                self._close_end()
                return
            self._beats.heard_s = now_s
            if isinstance(packet[0], Seen):
                for line in packet[0].lines:
                    self.ledger.add(line)

    def take_exit(self, pid: int, status: int, now_s: float) -> None:
        """Note the death of the supervisor."""
        if self._child is not None and self._child.pid == pid:
            self._note_death(describe_end(self._child, status), now_s)

    def tick(self, now_s: float) -> str | None:
        """Kill one that is silent, start it when that is due; says why when it was started *again*."""
        self.flush()
        self._check_silence(now_s)
        if now_s >= self._drop_due_s:
            self._drop_due_s = now_s + _DROP_REST_S
            self._drop_ended()
        if self._child is not None or not self._trees or now_s < self._due_s or self.machine is None:
            return None
        try:
            self._start(self.machine, now_s)
        except (SpawnError, OSError) as error:
            self._reason = str(error)
            self._plan_restart(now_s)
            return None
        self.starts += 1
        return self._reason if self.starts > 1 else None

    def flush(self) -> None:
        """Send what waits; to nobody, nothing: the next supervisor is told everything."""
        while self._outbox and self._end is not None:
            packet, key = self._outbox[0]
            tree = self._trees.get(key) if key is not None else None
            try:
                if key is None or tree is not None:
                    send_packet(self._end, packet, (tree.listener,) if tree else ())
            except BlockingIOError:
                return
            except OSError:
                self._outbox.clear()
                return
            self._outbox.popleft()

    def _say(self, packet: ToSupervisor, key: int | None = None) -> None:
        if self._end is not None:
            self._outbox.append((packet, key))
            self.flush()

    def _say_addresses(self, addresses: list[str]) -> None:
        for at in range(0, len(addresses), _ADDRESSES_MAX):
            self._say(Tell(tuple(addresses[at : at + _ADDRESSES_MAX])))

    def _start(self, machine: Machine, now_s: float) -> None:
        if self._slate < 0:
            self._slate = notify.build_slate()
        ours, theirs = build_pair()
        ours.setblocking(False)
        step: Step = ("egress supervisor", lambda: self.run(machine, theirs.fileno(), self._slate))
        try:
            self._child = spawn(Command(argv=("egress supervisor",), env={}, pdeathsig=9), steps=(step,))
        except SpawnError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._end, self._killed_s, self._beats = ours, None, Beats(now_s)
        self._say_addresses(list(self._addresses))
        for tree in self._trees.values():
            self._say(Watch(tree.key, tree.replica, tree.rule), tree.key)
        self._say(Ready())

    def _check_silence(self, now_s: float) -> None:
        if self._child is None:
            return
        if self._killed_s is not None:
            if now_s - self._killed_s >= REAP_LIMIT_S:
                os.close(self._child.status_fd)
                self._note_death("hangs in the kernel", now_s)
            return
        limit_s = self.settings.guard_timeout_s
        heard_s = self._beats.heard_s if self._beats.heard_s is not None else self._beats.started_s
        if now_s - heard_s >= limit_s:
            self._kill(f"no beat for {limit_s:g} s", now_s)

    def _kill(self, reason: str, now_s: float) -> None:
        if self._child is not None and self._killed_s is None:
            self._reason, self._killed_s = reason, now_s
            kill_role(self._child.pid)

    def _note_death(self, how: str, now_s: float) -> None:
        self._reason = f"{self._reason} ({how})" if self._killed_s is not None else how
        self._child = None
        self._close_end()
        self._plan_restart(now_s)

    def _plan_restart(self, now_s: float) -> None:
        self._failures = 1 if now_s - self._beats.started_s >= _LONG_S else self._failures + 1
        self._due_s = now_s + _BACKOFF_S[min(self._failures, len(_BACKOFF_S)) - 1]

    def _close_end(self) -> None:
        self._outbox.clear()
        if self._end is not None:
            self._end.close()
            self._end = None

    def _drop_ended(self) -> None:
        """Close listeners of trees of which no process is left."""
        if not self._trees:
            return
        poller = select.poll()
        for tree in self._trees.values():
            poller.register(tree.listener, 0)
        ended = {fd for fd, events in poller.poll(0) if events & (select.POLLHUP | select.POLLERR)}
        for key in [key for key, tree in self._trees.items() if tree.listener in ended]:
            os.close(self._trees.pop(key).listener)
