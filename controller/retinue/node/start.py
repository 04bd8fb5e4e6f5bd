"""Start the keeper of a node: in namespaces of its own, else plainly, and then say why."""

import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from retinue.channel.join import Join, build_join
from retinue.node import kernel
from retinue.node.descriptors import build_pair, send_packet
from retinue.node.namespace import NamespaceRefused, spawn_in_namespace
from retinue.node.settings import Greeting, NodeSettings
from retinue.node.spawn import WARNINGS, Child, Command, spawn, wait_exec
from retinue.terms.record import replace, to_pretty_json

SETTINGS = "keeper.json"
LOG = "keeper.log"
_OFF_BY_MANIFEST = "off by manifest"
_NOTE_BYTES = 2048
_EXEC_LIMIT_S = 60.0


@dataclass(slots=True)
class Keeper:
    """The outer process's view of its keeper."""

    pid: int
    """On the host."""
    end: socket.socket
    settings: NodeSettings
    """With what the start found out: the rung and why."""
    fd: int | None
    """Of `end`; None once it is closed."""

    def close(self) -> None:
        self.end.close()
        self.fd = None


def start_keeper(join: Join, settings: NodeSettings) -> Keeper:
    """Write the join file into the node directory, start the keeper and greet it.

    Errors: SpawnError when the interpreter cannot run, OSError when the node directory cannot be written.
    """
    node_dir = Path(settings.node_dir)
    _write_private(Path(settings.join_path), build_join(join))
    ours, theirs = build_pair()
    ours.setblocking(False)
    log_fd = os.open(node_dir / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        child, settled = _start(join, settings, theirs.fileno(), log_fd)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(log_fd)
    send_packet(ours, Greeting(child.pid, os.getpid()))
    return Keeper(child.pid, ours, settled, ours.fileno())


def _start(join: Join, settings: NodeSettings, control_fd: int, log_fd: int) -> tuple[Child, NodeSettings]:
    weaker = _OFF_BY_MANIFEST
    if join.wants_namespace:
        try:
            settled = _write_settings(settings, has_namespace=True, weaker="")
            return spawn_in_namespace(_build_command(settled, control_fd, log_fd)), settled
        except NamespaceRefused as refused:
            weaker = str(refused)
    settled = _write_settings(settings, has_namespace=False, weaker=weaker)
    # Should the keeper be killed, its orphans come to us and not to the host's init.
    kernel.become_subreaper()
    # Not KILL: a keeper without a namespace that dies at once would leave its services behind.
    child = spawn(_build_command(settled, control_fd, log_fd, pdeathsig=signal.SIGTERM))
    wait_exec(child, _EXEC_LIMIT_S)
    return child, settled


def _build_command(settings: NodeSettings, control_fd: int, log_fd: int, pdeathsig: int | None = None) -> Command:
    path = os.path.join(settings.node_dir, SETTINGS)
    return Command(
        argv=(sys.executable, "-P", "-m", "retinue", "keeper", path, str(control_fd)),
        env={**_build_env(), **settings.tags},
        cwd=settings.node_dir,
        stdout=log_fd,
        stderr=log_fd,
        keep_fds=(control_fd,),
        pdeathsig=pdeathsig,
        ignored=WARNINGS,
    )


def _build_env() -> dict[str, str]:
    """The caller's environment; a relative PYTHONPATH still means what it meant here once the directory is another."""
    env = dict(os.environ)
    if env.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in env["PYTHONPATH"].split(os.pathsep))
    return env


def _write_settings(settings: NodeSettings, has_namespace: bool, weaker: str) -> NodeSettings:
    settled = replace(settings, has_namespace=has_namespace, weaker=weaker)
    _write_private(Path(settings.node_dir) / SETTINGS, to_pretty_json(settled))
    return settled


def _write_private(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)


def read_keeper_log(node_dir: Path) -> str:
    """Read the end of what the keeper printed before it died, for the report; empty when it said nothing."""
    try:
        text = (node_dir / LOG).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
    return f": {text[-_NOTE_BYTES:]}" if text else ""
