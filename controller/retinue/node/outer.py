"""The process that a launcher starts on a node: it stays in the host's namespaces and starts the keeper.

It forwards TERM, INT, HUP and the end of file of the stop descriptor as an order
to end the node, answers the keeper's questions about the host, and proves at the
end that nothing is left. It prints exactly one JSON line on standard output.
Single-threaded; never talks to the controller.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

from retinue.channel.join import Join, read_join
from retinue.errors import RetinueError
from retinue.node import kernel
from retinue.node.census import build_census, find_left, kill_left
from retinue.node.descriptors import build_pair, close_fds, receive_packet, send_packet
from retinue.node.holder import find_holder
from retinue.node.janitor import Janitor, fork_janitor
from retinue.node.namespace import NamespaceRefused, spawn_in_namespace
from retinue.node.nodedir import claim_node_dir, remove_node_dir
from retinue.node.settings import (
    KEEPER_LOST,
    KEEPER_SPENT,
    NODE_REFUSED,
    EndAsked,
    Ending,
    Greeting,
    HolderAsked,
    HolderIs,
    HostPidAsked,
    HostPidIs,
    NodeSettings,
    ToOuter,
)
from retinue.node.spawn import Child, Command, spawn, wait_exec
from retinue.terms.record import Record, replace, to_json, to_pretty_json

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NOTE_BYTES = 2048
_PROOF_LIMIT_S = 10.0
_OFF_BY_MANIFEST = "off by manifest (node: {namespace: off})"


class NodeReport(Record, frozen=True):
    """The one line a launcher reads from the outer process."""

    retinue_node: str
    clean: bool
    """Two scans in a row found no process of ours, and the node directory is gone."""
    rung: str
    """`namespace` | `subreaper`; how the node's processes were held together."""
    left: tuple[int, ...] = ()
    """Host pids that would not die."""
    note: str = ""
    """Why it ended; why the rung is the weaker one; what would not go."""


def run_outer(join_path: str, stop_fd: int | None = None, settings: NodeSettings | None = None) -> int:
    """Run a node until it ends; returns the exit code.

    Shape:  0 ended as asked (or by the agent's own decision), 4 the agent's restarts are spent, 8 nothing was
            started, 9 the keeper died unasked.
    Units:  `stop_fd` is a pipe whose write end only the stub has; None where srun or ssh carries the end.
    """
    wakeup = _catch_signals()
    try:
        join = read_join(Path(join_path))
        outer = _Outer(join, settings or NodeSettings(), wakeup, stop_fd)
    except RetinueError as error:
        print(error, file=sys.stderr)
        _print(NodeReport(retinue_node="", clean=True, rung="", note=str(error)))
        return NODE_REFUSED
    return outer.run()


def _catch_signals() -> int:
    """Have signals arrive as bytes on a pipe; returns its read end."""
    read_fd, write_fd = os.pipe()
    for fd in (read_fd, write_fd):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in (*_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return read_fd


def _print(report: NodeReport) -> None:
    """A launcher that is gone already must not cost us the exit code."""
    try:
        os.write(1, to_json(report) + b"\n")
    except OSError:
        pass


class _Outer:
    """One node launch."""

    def __init__(self, join: Join, settings: NodeSettings, wakeup_fd: int, stop_fd: int | None) -> None:
        self._join = join
        self._node_dir = Path(join.node_dir)
        self._lock_fd = claim_node_dir(self._node_dir)
        self._settings = replace(
            settings,
            run_id=join.run_id,
            node=join.node,
            node_dir=join.node_dir,
            join_path=str(self._node_dir / "join.pem"),
        )
        self._wakeup_fd = wakeup_fd
        self._stop_fd = stop_fd
        self._janitor: Janitor | None = None
        self._control, self._keeper_control = build_pair()
        self._control.setblocking(False)
        self._keeper_pid = 0
        self._keeper_status: int | None = None
        self._reason = ""
        """Why the node ends; empty while it lives."""
        self._kill_at_s: float | None = None

    def run(self) -> int:
        """Start, serve, prove, report."""
        try:
            self._janitor = fork_janitor(self._settings, self._lock_fd)
            self._start_keeper(Path(self._join.node_dir))
        except (RetinueError, OSError) as error:
            print(f"cannot start the keeper: {error}", file=sys.stderr)
            return self._finish(NODE_REFUSED, f"cannot start the keeper: {error}")
        while self._keeper_status is None and not self._is_given_up():
            self._serve_once()
        return self._finish(*self._judge())

    # --- start ------------------------------------------------------------------------

    def _start_keeper(self, node_dir: Path) -> None:
        _write_private(node_dir / "join.pem", Path(self._join_source()).read_bytes())
        if not self._settings.has_namespace:
            kernel.become_subreaper()

    def _join_source(self) -> str:
        return self._settings.join_path
