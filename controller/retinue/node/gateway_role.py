"""The keeper's gateway: the run's port on this node, the process behind it, its beat and its backoff.

It has no budget, because clients hold its URL: whatever kills it, it is started
again on the same listening socket. Nothing here blocks; times are the loop's clock.
"""

import os
import socket
import sys
from dataclasses import dataclass, field

from retinue.node.roles import GATEWAY, HOP, REAP_LIMIT_S, Beats, describe_end, kill_role, start_role
from retinue.node.settings import GATEWAY_SOCKET, NodeSettings
from retinue.node.spawn import Child, SpawnError


@dataclass(slots=True)
class GatewayRole:
    """Holds the run's port on this node, and a gateway behind it for as long as the node lives."""

    settings: NodeSettings
    starts: int = 0
    port: int | None = None
    beats: Beats = field(default_factory=Beats)
    beat_fd: int | None = None
    """Readable when the running gateway has beaten; None while none runs, or when it closed its end."""
    _socket: socket.socket | None = None
    _hop: socket.socket | None = None
    """Held from the first `bind` that wants it, whatever becomes of the port."""
    _child: Child | None = None
    _killed_s: float | None = None
    _backoff_s: float = 0.0
    _due_s: float | None = None
    """When it is started again; None while it runs or nothing is bound."""
    _reason: str = ""
    """Why the last one was killed, or how it ended."""

    @property
    def hop_port(self) -> int | None:
        """Where the gateways of other nodes call; None while nothing is held for them."""
        return self._hop.getsockname()[1] if self._hop is not None else None

    def bind(self, port: int, wants_hop: bool, now_s: float) -> OSError | None:
        """Bind and hold 127.0.0.1:port; the error when it is refused. Another port held before is given up."""
        if port == self.port:
            return None
        self._give_up()
        try:
            self._hop = self._hop or (listen_everywhere() if wants_hop else None)
        except OSError as error:
            return error
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(4096)
        except (OSError, OverflowError) as error:
            listener.close()
            return error if isinstance(error, OSError) else OSError(22, str(error))
        self._socket, self.port = listener, port
        self._due_s = now_s
        return None

    def take_beats(self, now_s: float) -> None:
        """Read what it has written; an end of file is no beat, and leaves it to its silence."""
        if self.beat_fd is None:
            return
        try:
            has_beaten = bool(os.read(self.beat_fd, 4096))
        except BlockingIOError:
            return
        if has_beaten:
            self.beats.heard_s = now_s
        else:
            self._close_beat()

    def take_exit(self, pid: int, status: int, now_s: float) -> None:
        """Note the death of the gateway; backoff doubles unless it had lived long."""
        if self._child is not None and self._child.pid == pid:
            self._note_death(describe_end(self._child, status), now_s)

    def tick(self, now_s: float) -> str | None:
        """Kill one that is silent for too long; start it when that is due; says why when it was started *again*."""
        self._check_silence(now_s)
        if self._due_s is None or now_s < self._due_s or self._socket is None:
            return None
        self._due_s = self._killed_s = None
        self.beats = Beats(now_s)
        try:
            self._child = self._start(self._socket.fileno())
        except (SpawnError, OSError) as error:
            self._reason = str(error)
            self._plan_restart(now_s)
            return None
        self.starts += 1
        return self._reason if self.starts > 1 else None

    def next_due_s(self) -> float | None:
        return self._due_s

    def _start(self, listen_fd: int) -> Child:
        hop_fd = self._hop.fileno() if self._hop is not None else -1
        self.beat_fd, far_fd = os.pipe()
        os.set_blocking(self.beat_fd, False)
        os.set_blocking(far_fd, False)  # A beat that nobody reads is dropped; it must not hang the gateway.
        values = {
            "{listen_fd}": str(listen_fd),
            "{hop_fd}": str(hop_fd),
            "{beat_fd}": str(far_fd),
            "{control_path}": os.path.join(self.settings.node_dir, GATEWAY_SOCKET),
        }
        argv = self.settings.gateway_argv or (sys.executable, *GATEWAY, *(HOP if hop_fd >= 0 else ()))
        fds = (listen_fd, far_fd, *((hop_fd,) if hop_fd >= 0 else ()))
        try:
            return start_role(self.settings, "gateway", argv, fds, values)
        except SpawnError:
            self._close_beat()
            raise
        finally:
            os.close(far_fd)

    def _check_silence(self, now_s: float) -> None:
        if self._child is None:
            return
        if self._killed_s is not None:
            if now_s - self._killed_s >= REAP_LIMIT_S:
                os.close(self._child.status_fd)
                self._note_death("hangs in the kernel", now_s)
            return
        silence = self.beats.describe_silence(self.settings, now_s)
        if silence:
            self._reason, self._killed_s = silence, now_s
            kill_role(self._child.pid)

    def _note_death(self, how: str, now_s: float) -> None:
        self._reason = f"{self._reason} ({how})" if self._killed_s is not None else how
        self._child = None
        self._close_beat()
        self._plan_restart(now_s)

    def _plan_restart(self, now_s: float) -> None:
        has_lived = now_s - self.beats.started_s >= self.settings.gateway_forgiven_s
        doubled = min(2 * self._backoff_s, self.settings.gateway_backoff_max_s)
        self._backoff_s = doubled if self._backoff_s and not has_lived else self.settings.gateway_backoff_s
        self._due_s = now_s + self._backoff_s

    def _close_beat(self) -> None:
        if self.beat_fd is not None:
            os.close(self.beat_fd)
            self.beat_fd = None

    def _give_up(self) -> None:
        """End the gateway of a port that another node refused; its death is then nobody's."""
        if self._child is not None:
            kill_role(self._child.pid)
            os.close(self._child.status_fd)
            self._child = None
        self._close_beat()
        if self._socket is not None:
            self._socket.close()
        self._socket = self.port = self._due_s = self._killed_s = None
        self.starts, self._backoff_s = 0, 0.0


def listen_everywhere() -> socket.socket:
    """Listen on all addresses of the host, IPv6 and IPv4 in one socket where the kernel has both; the port is its.

    Errors: OSError when no port is left.
    """
    try:
        return _listen(socket.AF_INET6, "::")
    except OSError:  # A kernel, or a network namespace, without IPv6.
        return _listen(socket.AF_INET, "0.0.0.0")


def _listen(family: socket.AddressFamily, address: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, 0))
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener
