"""The keeper's agent: the process, its socket, its beat and its budget."""

import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from socket import socket

from retinue.node.descriptors import build_pair, receive_packet, send_packet
from retinue.node.orders import ToAgent, ToKeeper
from retinue.node.roles import AGENT, REAP_LIMIT_S, Beats, describe_end, kill_role, start_role
from retinue.node.settings import NodeSettings
from retinue.node.spawn import Child, SpawnError
from retinue.terms.record import DecodeError

_DEAF_LIMIT_S = 1.0
_DELAYS_S = (0.0, 0.5, 2.0)
"""Before the n-th restart; the first is at once."""

DescriptorSource = Callable[[], tuple[int, ...] | None]
"""Descriptors at the moment of sending; None: the packet lost its subject, drop it."""


def _no_descriptors() -> tuple[int, ...]:
    return ()


@dataclass(slots=True)
class AgentRole:
    """One agent at a time."""

    settings: NodeSettings
    starts: int = 0
    failures: int = 0
    """Deaths since one last lived for `agent_forgiven_s`."""
    last_reason: str = ""
    """How the previous one ended."""
    is_spent: bool = False
    is_hung: bool = False
    """The last one that beat could not write: the run directory hangs."""
    end: socket | None = None
    pid: int = 0
    """0: none runs."""
    _child: Child | None = None
    _beats: Beats = field(default_factory=Beats)
    _killed_s: float | None = None
    _deaf_s: float | None = None
    """When it closed its socket."""
    _due_s: float | None = 0.0
    _outbox: deque[tuple[ToAgent, DescriptorSource]] = field(default_factory=deque)

    def start_if_due(self, now_s: float) -> bool:
        """Start the next agent when that is due; True when one was started."""
        if self._due_s is None or now_s < self._due_s:
            return False
        self._due_s = self._killed_s = self._deaf_s = None
        self._beats = Beats(now_s)
        ours, theirs = build_pair()
        ours.setblocking(False)
        try:
            argv = self.settings.agent_argv or (sys.executable, *AGENT)
            fd = theirs.fileno()
            self._child = start_role(self.settings, "agent", argv, (fd,), {"{keeper_fd}": str(fd)})
        except SpawnError as error:
            ours.close()
            self._note_death(str(error), now_s)
            return False
        finally:
            theirs.close()
        self.end, self.pid = ours, self._child.pid
        self.starts += 1
        return True

    def take_beat(self, now_s: float, is_hung: bool) -> None:
        self._beats.heard_s = now_s
        self.is_hung = is_hung

    def forgive_silence(self, now_s: float) -> None:
        """Restart the clock: it was the keeper that did not run."""
        self._beats.forgive(now_s)

    def kill(self, reason: str, now_s: float) -> None:
        """Kill it for a reason; its death is noted when it is reaped, or soon after when it hangs."""
        if self._child is not None and self._killed_s is None:
            self._killed_s = now_s
            self.last_reason = reason
            kill_role(self._child.pid)

    def check(self, now_s: float) -> bool:
        """Kill an agent that is silent for too long; True when a killed one will not be reaped: `take_exit` it."""
        if self._child is None:
            return False
        if self._killed_s is not None:
            return now_s - self._killed_s >= REAP_LIMIT_S
        if self._deaf_s is not None:
            if now_s - self._deaf_s >= _DEAF_LIMIT_S:
                self.kill("closed its socket", now_s)
        elif silence := self._beats.describe_silence(self.settings, now_s):
            self.kill(silence, now_s)
        return False

    def take_exit(self, status: int | None, now_s: float) -> None:
        """Note its death and plan the next one, or find the budget spent; status None: it was not reaped."""
        if self._child is None:
            return
        how = describe_end(self._child, status) if status is not None else "hangs in the kernel"
        reason = f"{self.last_reason} ({how})" if self._killed_s is not None else how
        self._child, self.pid = None, 0
        self._outbox.clear()
        if self.end is not None:
            self.end.close()
            self.end = None
        self._note_death(reason, now_s)

    def _note_death(self, reason: str, now_s: float) -> None:
        if now_s - self._beats.started_s >= self.settings.agent_forgiven_s:
            self.failures = 0
        self.failures += 1
        self.last_reason = reason
        self.is_spent = self.failures > self.settings.agent_limit
        self._due_s = None if self.is_spent else now_s + _DELAYS_S[min(self.failures, len(_DELAYS_S)) - 1]

    def next_due_s(self) -> float | None:
        return self._due_s

    # --- packets ----------------------------------------------------------------------

    def send(self, order: ToAgent, fds: DescriptorSource = _no_descriptors) -> None:
        """Send in order, or keep until it reads; nothing is sent to an agent that is gone."""
        if self.end is not None:
            self._outbox.append((order, fds))
            self.flush()

    def has_waiting(self) -> bool:
        return bool(self._outbox)

    def flush(self) -> None:
        while self._outbox and self.end is not None:
            order, source = self._outbox[0]
            fds = source()
            try:
                if fds is not None:
                    send_packet(self.end, order, fds)
            except BlockingIOError:
                return
            except OSError:  # It died: the next one gets it all in the inventory.
                self._outbox.clear()
                return
            self._outbox.popleft()

    def receive(self, now_s: float) -> tuple[ToKeeper, list[int]] | None:
        """Take one packet; None when there is none. One that is no order is a bug of the agent and its death."""
        if self.end is None:
            return None
        try:
            packet = receive_packet(self.end, ToKeeper)
        except BlockingIOError:
            return None
        except (DecodeError, OSError) as error:
            self.kill(f"sent what is no order: {error}", now_s)
            return None
        if packet is None:
            # Dying, as a rule; its status comes with SIGCHLD. One that lives on is deaf for ever: `check`.
            self.end.close()
            self.end, self._deaf_s = None, now_s
        return packet
