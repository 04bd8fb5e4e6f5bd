"""What the keeper's two long-lived children besides the services have in common: start, log, beat and end.

Each has its own rule for being started again: `agent_role` has a budget, because a
node without an agent is useless and must end; `gateway_role` has none. Nothing here blocks.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from retinue.node.settings import NodeSettings
from retinue.node.spawn import WARNINGS, Child, Command, SpawnError, poll_exec, spawn
from retinue.node.wakeup import describe_status

AGENT = ("-P", "-m", "retinue", "agent", "{join}", "--keeper-fd", "{keeper_fd}")
GATEWAY = (
    *("-P", "-m", "retinue", "gateway", "--listen-fd", "{listen_fd}"),
    *("--control-path", "{control_path}", "--join", "{join}", "--beat-fd", "{beat_fd}"),
)
HOP = ("--hop-fd", "{hop_fd}")
"""Added where gateways of other nodes call."""
REAP_LIMIT_S = 2.0
"""A killed role that is not reaped by then hangs in the kernel; it can run no more, so the next one may."""


@dataclass(slots=True)
class Beats:
    """When a role was last heard of."""

    started_s: float = 0.0
    heard_s: float | None = None
    """Last beat; None before the first."""

    def forgive(self, now_s: float) -> None:
        """Restart the clock: it was the keeper that did not run."""
        if self.heard_s is not None:
            self.heard_s = now_s
        else:
            self.started_s = now_s

    def describe_silence(self, settings: NodeSettings, now_s: float) -> str:
        """Say what a role that is silent for too long has failed to do; empty while it is not."""
        if self.heard_s is None:
            is_late = now_s - self.started_s >= settings.first_beat_s
            return f"no first beat for {settings.first_beat_s:g} s" if is_late else ""
        is_silent = now_s - self.heard_s >= settings.beat_timeout_s
        return f"no beat for {settings.beat_timeout_s:g} s" if is_silent else ""


def start_role(
    settings: NodeSettings, name: str, argv: tuple[str, ...], fds: tuple[int, ...], values: dict[str, str]
) -> Child:
    """Start a role with these descriptors; its output goes to `<name>.log` in the node directory.

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
                keep_fds=fds,
                # Without a namespace nothing else would end a role whose keeper was killed.
                pdeathsig=signal.SIGKILL,
                ignored=WARNINGS,
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
