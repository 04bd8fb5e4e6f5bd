"""The process that a launcher starts on a node: it stays in the host's namespaces and starts the keeper.

It turns TERM, INT, HUP and the end of file of the stop descriptor into an order to end the node, answers the
keeper's questions about the host, and proves at the end that nothing is left. It prints exactly one JSON line on
standard output. Single-threaded; never talks to the controller.
"""

import os
import select
import signal
import sys
import time
from pathlib import Path

from retinue.channel.join import Join
from retinue.errors import RetinueError
from retinue.node import kernel
from retinue.node.census import build_census, find_left, kill_left
from retinue.node.descriptors import close_fds, receive_packet, send_packet
from retinue.node.entry import find_node_name, read_entry
from retinue.node.gpu_reader import GpuReader
from retinue.node.janitor import Janitor, fork_janitor
from retinue.node.listeners import describe_holder
from retinue.node.nodedir import claim_node_dir, keep_owner_access, remove_node_dir
from retinue.node.prove import prove_node
from retinue.node.report import NodeReport, print_report
from retinue.node.settings import (
    KEEPER_LOST,
    KEEPER_SPENT,
    NODE_REFUSED,
    EndAsked,
    Ending,
    FromOuter,
    GpusAre,
    GpusAsked,
    HolderAsked,
    HolderIs,
    HostPidAsked,
    HostPidIs,
    NodeSettings,
    TasksAre,
    TasksAsked,
    ToOuter,
)
from retinue.node.spawn import WARNINGS
from retinue.node.start import Keeper, read_keeper_log, start_keeper
from retinue.node.tasks import Tasks
from retinue.node.wakeup import catch_signals, describe_status, name_signal, read_signals, reap_children
from retinue.terms.record import DecodeError, replace

_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DEATH_S = 5.0
"""How long a keeper that died by itself may take to vanish with all below it."""
_LIMIT_S = 10.0
"""How long a killed keeper may take to vanish, and how long killing what is left may take."""


def run_outer(join_path: str, stop_fd: int | None = None, settings: NodeSettings | None = None) -> int:
    """Run a node until it ends; returns the exit code.

    Shape:  `stop_fd` is a pipe whose write end only the stub has; None where srun or ssh carries the end.
            0 ended as asked, or by an order of the agent; 4 the agent's restarts are spent; 8 nothing could
            be started; 9 the keeper died unasked.
    """
    for number in WARNINGS:
        signal.signal(number, signal.SIG_IGN)
    wakeup_fd = catch_signals((*_END_SIGNALS, signal.SIGCHLD))
    keep_owner_access()
    node = find_node_name(Path(join_path), os.environ)
    try:
        join = read_entry(Path(join_path), os.environ)
        lock_fd = claim_node_dir(Path(join.node_dir))
    except RetinueError as error:
        print(error, file=sys.stderr, flush=True)
        print_report(NodeReport(node, clean=True, rung="", note=str(error)))
        return NODE_REFUSED
    filled = replace(
        settings or NodeSettings(),
        run_id=join.run_id,
        node=join.node,
        node_dir=join.node_dir,
        join_path=os.path.join(join.node_dir, "join.pem"),
    )
    return _Outer(join, filled, wakeup_fd, stop_fd, lock_fd).run()


def main(argv: list[str]) -> int:
    """`node JOIN [--stop-fd N]`; what a launcher runs on a node. `node --prove RUN_ID` at the end, when need be."""
    match argv:
        case ["--prove", run_id]:
            return prove_node(run_id)
        case [join_path]:
            return run_outer(join_path)
        case [join_path, "--stop-fd", number] if number.isdigit():
            return run_outer(join_path, int(number))
    print("usage: retinue node JOIN [--stop-fd N]", file=sys.stderr, flush=True)
    return 2


class _Outer:
    """One node launch, once its directory is ours."""

    def __init__(self, join: Join, settings: NodeSettings, wakeup_fd: int, stop_fd: int | None, lock_fd: int) -> None:
        self._join = join
        self._settings = settings
        self._wakeup_fd = wakeup_fd
        self._stop_fd = stop_fd
        self._lock_fd = lock_fd
        self._janitor: Janitor | None = None
        self._keeper: Keeper | None = None
        self._keeper_status: int | None = None
        self._tasks = Tasks(settings.run_id, os.environ)
        self._gpus = GpuReader(os.environ)
        self._reason = ""
        """Why the node ends; empty while it lives."""
        self._asked_by = ""
        """The first signal that asked for the end."""
        self._is_asked = False
        """The end was asked for by signal or stop descriptor."""
        self._deadline_s: float | None = None
        """When the keeper is killed, and after that: when it is given up."""
        self._kill_limit_s = _LIMIT_S
        self._was_killed = False
        self._is_given_up = False

    def run(self) -> int:
        """Start, serve, prove, report."""
        try:
            self._janitor = fork_janitor(self._settings, self._lock_fd)
            self._keeper = start_keeper(self._join, self._settings)
        except (RetinueError, OSError) as error:
            print(f"cannot start the keeper: {error}", file=sys.stderr, flush=True)
            return self._finish(NODE_REFUSED, f"cannot start the keeper: {error}")
        self._settings = self._keeper.settings
        self._introduce(self._keeper)
        while self._keeper_status is None and not self._is_given_up:
            self._serve_once(self._keeper)
        code, note = self._judge()
        return self._finish(code, note)

    def _introduce(self, keeper: Keeper) -> None:
        """Give the janitor what it needs to end this keeper and no other process that gets its pid."""
        if self._janitor is None:
            return
        try:
            pidfd = kernel.open_pidfd(keeper.pid)
        except OSError:  # Reaped already: nothing to end.
            return
        self._janitor.tell_keeper(pidfd, self._settings.has_namespace)
        os.close(pidfd)

    # --- the loop ---------------------------------------------------------------------

    def _serve_once(self, keeper: Keeper) -> None:
        poller = select.poll()
        janitor_fd = self._janitor.pidfd if self._janitor else None
        for fd in (self._wakeup_fd, self._stop_fd, keeper.fd, janitor_fd, self._gpus.fd):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        wait_ms = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic()) * 1000
        ready = {fd for fd, _ in poller.poll(wait_ms)}
        if self._wakeup_fd in ready:
            self._take_signals(read_signals(self._wakeup_fd))
        if self._stop_fd in ready:
            self._read_stop()
        if keeper.fd in ready:
            self._answer(keeper)
        if janitor_fd in ready:
            self._replace_janitor()
        if self._gpus.fd in ready and (text := self._gpus.take()) is not None:
            self._say(keeper, GpusAre(text))
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            self._insist(keeper)

    def _take_signals(self, numbers: frozenset[int]) -> None:
        self._reap()
        for number in numbers.intersection(_END_SIGNALS):
            self._asked_by = self._asked_by or name_signal(number)
            self._ask_end(f"asked by {name_signal(number)}")

    def _read_stop(self) -> None:
        assert self._stop_fd is not None
        if not os.read(self._stop_fd, 4096):
            self._stop_fd = None
            self._ask_end("the stub is gone or wants the end")

    def _ask_end(self, reason: str) -> None:
        if self._is_asked or self._keeper is None:
            return
        self._is_asked = True
        self._reason = reason
        self._deadline_s = time.monotonic() + self._settings.keeper_limit_s
        self._say(self._keeper, EndAsked(reason))

    def _expect_death(self) -> None:
        """A dead keeper is reaped once all below it is; what the kernel keeps for ever must not keep us."""
        if self._deadline_s is None:
            self._reason, self._was_killed = "the keeper died unasked", True
            self._deadline_s = time.monotonic() + _DEATH_S

    def _insist(self, keeper: Keeper) -> None:
        """Kill a keeper that does not end; give up on one that a SIGKILL did not end (D state below it)."""
        self._is_given_up = self._was_killed
        self._was_killed = True
        self._deadline_s = time.monotonic() + self._kill_limit_s
        os.kill(keeper.pid, signal.SIGKILL)

    def _answer(self, keeper: Keeper) -> None:
        try:
            packet = receive_packet(keeper.end, ToOuter)
        except BlockingIOError:
            return
        except (DecodeError, OSError):
            packet = None
        if packet is None:
            keeper.close()
            self._expect_death()
            return
        said, fds = packet
        match said:
            case HostPidAsked(pid=pid):
                self._say(keeper, HostPidIs(pid, kernel.read_pidfd_pid(fds[0]) if fds else 0))
            case HolderAsked(port=port):
                self._say(keeper, HolderIs(port, describe_holder(port)))
            case TasksAsked(signal=name, spared_step=step):
                told, live = self._tasks.tell(signal.Signals[f"SIG{name}"] if name else 0, step)
                self._say(keeper, TasksAre(name, told, live))
            case GpusAsked():
                self._gpus.start()
            case Ending(reason=reason, is_hung=is_hung):
                self._reason = self._reason or reason
                if is_hung:
                    self._kill_limit_s = self._settings.hung_limit_s
                if is_hung or self._deadline_s is None:
                    limit_s = 2 * self._kill_limit_s if is_hung else self._settings.keeper_limit_s
                    self._deadline_s = time.monotonic() + limit_s
        close_fds(fds)

    def _say(self, keeper: Keeper, said: FromOuter) -> None:
        """A keeper that does not read loses the answer; one that must end is killed at the deadline."""
        try:
            send_packet(keeper.end, said)
        except OSError:
            pass

    def _reap(self) -> None:
        for pid, status in reap_children():
            if self._keeper is not None and pid == self._keeper.pid:
                self._keeper_status = status

    def _replace_janitor(self) -> None:
        """Without a janitor a later kill of this process would leave the node directory behind."""
        if self._janitor is not None:
            self._janitor.forget()
            self._janitor = None
        try:
            self._janitor = fork_janitor(self._settings, self._lock_fd)
        except OSError as error:
            print(f"cannot fork a new janitor: {error.strerror}", file=sys.stderr, flush=True)
            return
        if self._keeper is not None and self._keeper_status is None:
            self._introduce(self._keeper)

    # --- the end ----------------------------------------------------------------------

    def _judge(self) -> tuple[int, str]:
        """Exit code and reason once the keeper is gone or given up."""
        status = self._keeper_status
        if status is None:
            return 0 if self._is_asked else KEEPER_LOST, f"{self._reason}; the keeper would not die"
        code = os.waitstatus_to_exitcode(status)
        if self._is_asked or code == 0:
            killed = "; the keeper had to be killed" if self._was_killed else ""
            return 0, f"{self._reason}{killed}"
        if code == KEEPER_SPENT:
            return KEEPER_SPENT, self._reason
        log = read_keeper_log(Path(self._settings.node_dir))
        return KEEPER_LOST, f"the keeper died unasked: {describe_status(status)}{log}"

    def _finish(self, code: int, note: str) -> int:
        """Prove that nothing is left, remove the node directory, send the janitor home, report."""
        janitor_pid = self._janitor.pid if self._janitor else 0
        has_namespace = self._settings.has_namespace
        # With a namespace the kernel has ended all of it: what a scan finds then is told, not killed.
        census = build_census(self._settings.tags, (janitor_pid,), root=0 if has_namespace else os.getpid())
        if has_namespace:
            left = tuple(sorted(find_left(census) | find_left(census)))
        else:
            left = kill_left(census, self._reap, self._kill_limit_s)
        if self._is_given_up and self._keeper is not None:
            left = (self._keeper.pid, *left)
        stuck = remove_node_dir(Path(self._settings.node_dir))
        if self._janitor is not None:
            self._janitor.dismiss()
        weaker = f"no namespace: {self._settings.weaker}" if self._settings.weaker else ""
        rung = "" if self._keeper is None else "namespace" if has_namespace else "subreaper"
        whole_note = "; ".join(part for part in (note, weaker, *stuck) if part)
        print_report(NodeReport(self._join.node, not left and not stuck, rung, left, whole_note, self._asked_by))
        return code
