"""The keeper's two long-lived children besides the services: the agent and the gateway.

Each has its own rule for being started again: the agent has a budget, because a
node without one is useless and must end; the gateway has none, because clients
hold its URL. Nothing here blocks; `tick` is called with the loop's clock.
"""

import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from retinue.node.settings import GATEWAY_SOCKET, NodeSettings
from retinue.node.spawn import Child, Command, SpawnError, poll_exec, spawn
from retinue.node.wakeup import describe_status

AGENT = ("-P", "-m", "retinue", "agent", "{join}", "--keeper-fd", "{keeper_fd}")
GATEWAY = (
    *("-P", "-m", "retinue", "gateway", "--listen-fd", "{listen_fd}"),
    *("--control-path", "{control_path}", "--join", "{join}"),
)


def start_role(settings: NodeSettings, name: str, argv: tuple[str, ...], fd: int, values: dict[str, str]) -> Child:
    """Start a role with one descriptor; its output goes to `<name>.log` in the node directory.

    Errors: SpawnError when not even the fork succeeded.
    """
    values = {**values, "{join}": settings.join_path}
    log_fd = _open_log(settings, name)
    try:
        return spawn(
            Command(
                argv=tuple(_fill(word, values) for word in argv),
                env={**os.environ, **settings.tags},
                cwd=settings.node_dir,
                stdout=log_fd,
                stderr=log_fd,
                keep_fds=(fd,),
                # Without a namespace nothing else would end a role whose keeper was killed.
                pdeathsig=signal.SIGKILL,
            )
        )
    finally:
        if log_fd is not None:
            os.close(log_fd)


def limit_log(settings: NodeSettings, name: str) -> None:
    """Empty a role's log that grew too long; the role appends, so it goes on at the start."""
    path = Path(settings.node_dir) / f"{name}.log"
    try:
        if path.stat().st_size > settings.log_limit_bytes:
            os.truncate(path, 0)
    except OSError:
        pass


def describe_end(child: Child, status: int) -> str:
    """Say how a dead role ended, or that it never ran; closes its status descriptor."""
    try:
        poll_exec(child)
    except SpawnError as error:
        return str(error)
    return describe_status(status)


def kill_role(pid: int) -> None:
    """Kill a role and what it keeps in its own group; it is not reaped yet, so the pid is its own."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except OSError:
            pass


def _open_log(settings: NodeSettings, name: str) -> int | None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(Path(settings.node_dir) / f"{name}.log", flags, 0o600)
    except OSError:  # A full disk costs the log, not the role.
        return None


def _fill(word: str, values: dict[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


@dataclass(slots=True)
class GatewayRole:
    """Holds the run's port on this node, and a gateway behind it for as long as the node lives."""

    settings: NodeSettings
    starts: int = 0
    port: int | None = None
    _socket: socket.socket | None = None
    _child: Child | None = None
    _started_s: float = 0.0
    _backoff_s: float = 0.0
    _due_s: float | None = None
    """When it is started again; None while it runs or nothing is bound."""
    _reason: str = ""

    def bind(self, port: int, now_s: float) -> OSError | None:
        """Bind and hold 127.0.0.1:port; the error when it is refused. Another port held before is given up."""
        if port == self.port:
            return None
        self._give_up()
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

    def take_exit(self, pid: int, status: int, now_s: float) -> None:
        """Note the death of the gateway; backoff doubles unless it had lived long."""
        if self._child is None or self._child.pid != pid:
            return
        self._reason = describe_end(self._child, status)
        self._child = None
        self._plan_restart(now_s)

    def tick(self, now_s: float) -> str | None:
        """Start it when that is due; says why when it was started *again*."""
        if self._due_s is None or now_s < self._due_s or self._socket is None:
            return None
        self._due_s, self._started_s = None, now_s
        values = {
            "{listen_fd}": str(self._socket.fileno()),
            "{control_path}": os.path.join(self.settings.node_dir, GATEWAY_SOCKET),
        }
        argv = self.settings.gateway_argv or (sys.executable, *GATEWAY)
        try:
            self._child = start_role(self.settings, "gateway", argv, self._socket.fileno(), values)
        except SpawnError as error:
            self._reason = str(error)
            self._plan_restart(now_s)
            return None
        self.starts += 1
        return self._reason if self.starts > 1 else None

    def next_due_s(self) -> float | None:
        return self._due_s

    def _plan_restart(self, now_s: float) -> None:
        has_lived = now_s - self._started_s >= self.settings.gateway_forgiven_s
        doubled = min(2 * self._backoff_s, self.settings.gateway_backoff_max_s)
        self._backoff_s = doubled if self._backoff_s and not has_lived else self.settings.gateway_backoff_s
        self._due_s = now_s + self._backoff_s

    def _give_up(self) -> None:
        """End the gateway of a port that another node refused; its death is then nobody's."""
        if self._child is not None:
            kill_role(self._child.pid)
            os.close(self._child.status_fd)
            self._child = None
        if self._socket is not None:
            self._socket.close()
        self._socket = self.port = self._due_s = None
        self.starts, self._backoff_s = 0, 0.0
