"""The stub: starts everything, restarts a crashed controller, writes the last verdict, exits last.

Promises: the trainer is started once at most; the controller's address outlives every controller; what the trainer
leaves behind is reported and ended; no hung file system and no hung controller keeps it from its end. It decides
nothing while a controller lives. Single-threaded, standard library only: it must outlive everything it starts.
What it and a controller say to each other is listed in `stub_lines`.
"""

import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any

from retinue.node import kernel
from retinue.node.wakeup import reap_children
from retinue.supervise import stub_signals
from retinue.supervise.stub_children import Child
from retinue.supervise.stub_end import end_run
from retinue.supervise.stub_fds import find_inherited_fds, listen, open_standard_fds
from retinue.supervise.stub_hung import Hung
from retinue.supervise.stub_run import Clock, Run, read_tail, say, write_stderr
from retinue.supervise.stub_verdict import CONTROLLER_LOST, FAILED_EXIT, INTERNAL, INTERNAL_EXIT, SIGNAL, OwnEnd
from retinue.supervise.stub_watch import RESTARTS, Watch, start_controller
from retinue.supervise.stub_work import Work

OBEY_BEATS = 0.25
"""Heard from no controller for this part of the beat limit (5 s of 20 s), the stub obeys a stop signal itself."""
STOPS_LIMIT = 3
"""The third signal is a person who does not want to wait for a controller."""
HURRY_S = 2.0
"""After it, nothing is waited for longer than this."""
TRAINER_GRACE_S, SHORT_GRACE_S = 10.0, 5.0
TURN_S, LOOK_S = 1.0, 0.05
"""How long a turn may take; how often a wait looks that may end without a SIGCHLD, as of what is no child of ours."""


class Stub:
    """All that is known, and the one loop. Only `pump` waits."""

    def __init__(self, run: Run) -> None:
        inherited = find_inherited_fds()
        self.run = run
        self.clock = Clock()
        self.watch = Watch(run.beat_timeout_s)
        self.hung = Hung()
        self.stops: list[dict[str, Any]] = []
        self.verdict: dict[str, Any] | None = None
        """The controller's latest, and its last order."""
        self.finish: dict[str, Any] | None = None
        self.own_end: OwnEnd | None = None
        self._obey_limit_s = OBEY_BEATS * run.beat_timeout_s
        self._obey_due_s: float | None = None
        self._hurry_due_s: float | None = None
        self._listener: socket.socket | None = None
        self._signal_fd = stub_signals.open_signalfd()
        # Only this process may hold the write end: its end of file means that the stub is gone.
        self._stop_fd, self._stop_write_fd = os.pipe()
        self.work = Work(run, self._stop_fd, inherited, stub_signals.find_ignored(), self.tell)

    def serve(self) -> int:
        """Run until the controller says `finish` or the stub must end the run itself; return the exit code."""
        try:
            self._listener = listen(self.run.listen_host)
        except OSError as error:
            self.end(INTERNAL, f"cannot listen on {self.run.listen_host}: {error.strerror}", INTERNAL_EXIT)
        while self.finish is None and self.own_end is None:
            self._check_watch()
            self.pump(TURN_S)
            self._check_obeyed()
        if self.own_end is not None:
            say(f"{self.own_end.cause}; the run is ended")
        return end_run(self)

    def end(self, ended_by: str, cause: str, exit_code: int, grace_s: float = TRAINER_GRACE_S) -> None:
        """End the run without a controller; the first cause stays."""
        if self.own_end is None and self.finish is None:
            self.own_end = OwnEnd(ended_by, cause, exit_code, grace_s)
            trainer = self.work.trainer
            self.own_end.trainer_was_over = trainer is not None and not trainer.is_alive

    # --- the loop -------------------------------------------------------------------

    def pump(self, limit_s: float) -> None:
        """Wait for something to happen, at most so long, and take it."""
        # What is about to happen then is told by no signal and no descriptor.
        is_looking = self.hung.is_any_doomed or self.work.is_launch_leaving
        asked_s = max(0.0, min(limit_s, LOOK_S if is_looking else TURN_S))
        takers = self._list_takers()
        poll = select.poll()
        for fd in takers:
            poll.register(fd, select.POLLIN)
        link = self.watch.link
        if link is not None and link.wants_write:
            poll.register(link.near, select.POLLIN | select.POLLOUT)
        for fd, _events in poll.poll(asked_s * 1000):
            takers[fd]()
        if self.clock.note_turn(asked_s) and self.watch.is_alive:
            # We were stopped ourselves: what was not heard meanwhile says nothing about the controller.
            self.watch.note_beat(self.clock.now_s())
        self.work.look_at_launch()
        self._give_up_hung()

    def wait(self, is_done: Callable[[], bool], limit_s: float, look_s: float = TURN_S) -> bool:
        """Pump until it is so, or time is up, or somebody is in a hurry; say whether it is so."""
        began_s = self.clock.now_s()
        while not is_done():
            due_s = began_s + limit_s
            if self._hurry_due_s is not None:
                due_s = min(due_s, max(began_s, self._hurry_due_s) + HURRY_S)
            left_s = due_s - self.clock.now_s()
            if left_s <= 0:
                return False
            self.pump(min(left_s, look_s))
        return True

    def look(self, is_done: Callable[[], bool], limit_s: float) -> bool:
        """Wait as above for what no signal tells."""
        return self.wait(is_done, limit_s, LOOK_S)

    def _list_takers(self) -> dict[int, Callable[[], None]]:
        """What is waited for. A taker looks at the state, not at the descriptor: an earlier one may have closed it."""
        takers = self.work.list_fds()
        if self.watch.link is not None and not self.watch.link.is_closed:
            takers[self.watch.link.near.fileno()] = self._take_link
        # Last: what a child has written is read before its end is noted.
        takers[self._signal_fd] = self._take_signals
        return takers

    # --- signals and children ---------------------------------------------------------

    def _take_signals(self) -> None:
        for caught in stub_signals.read_signals(self._signal_fd):
            if caught.number == signal.SIGCHLD:
                self._reap()
            elif caught.number == stub_signals.PASSED_ON:
                if self.work.trainer is not None:
                    self.work.trainer.send_signal(caught.number)
            else:
                self._take_stop(caught)

    def _take_stop(self, caught: stub_signals.Caught) -> None:
        stop = {"signal": caught.name, "count": len(self.stops) + 1, "from_terminal": caught.is_from_terminal}
        self.stops.append(stop)
        self.tell({"ev": "stop", **stop})
        now_s = self.clock.now_s()
        if len(self.stops) >= STOPS_LIMIT:
            self._hurry_due_s = now_s
            self.end(SIGNAL, f"SIG{caught.name} was received for the third time", self._stop_code(), SHORT_GRACE_S)
        if self._obey_due_s is None:
            self._obey_due_s = now_s + self._obey_limit_s

    def _stop_code(self) -> int:
        return 128 + signal.Signals["SIG" + self.stops[0]["signal"]]

    def _reap(self) -> None:
        """Reap every child that ended, adopted orphans too. Nobody else in this process waits for any."""
        for pid, status in reap_children():
            if not self.hung.take_exit(pid):
                self._take_exit(pid, status)

    def _take_exit(self, pid: int, status: int) -> None:
        if self.watch.child is not None and pid == self.watch.child.pid:
            self._end_controller(self.watch.child, status)
        self.work.take_exit(pid, status)

    def _give_up_hung(self) -> None:
        """Take for reaped what was killed and hangs in the kernel."""
        for child in (self.watch.child, self.work.trainer, self.work.launch):
            if child is not None and self.hung.is_due(child, child is self.watch.child):
                self._take_exit(child.pid, signal.SIGKILL)
                self.work.spared.append(child.pid)

    # --- the controller ---------------------------------------------------------------

    def tell(self, event: dict[str, Any]) -> None:
        """Tell the current controller, if any; the next one reads it in its hello."""
        if self.watch.link is not None and self.watch.is_alive:
            self.watch.link.send(event)

    def _start_controller(self, listener: socket.socket) -> None:
        child, link = start_controller(self.run, listener, self._stop_fd)
        self.watch.note_start(child, link, self.clock.now_s())
        if not child.is_alive:
            self._lose_controller(child)
            return
        self.work.spared.append(child.pid)
        self.tell({"ev": "hello", "starts": self.watch.starts, "stops": self.stops, **self.work.describe()})

    def _take_link(self) -> None:
        link = self.watch.link
        if link is None:
            return
        link.flush()
        for order in link.read():
            self.watch.note_beat(self.clock.now_s())
            self._obey_due_s = None
            self._obey(order)
        for problem in link.problems:
            say(f"cannot read an order of the controller: {problem}")
        link.problems.clear()
        if link.is_closed:
            self.watch.note_closed(self.clock.now_s())

    def _obey(self, order: dict[str, Any]) -> None:
        try:
            match order["op"]:
                case "run_dir":
                    self.hung.is_dir_hung = bool(order["is_hung"])
                case op if op == "beat" or self.own_end is not None or self.finish is not None:
                    pass
                case "say":
                    say(str(order.get("text", "")))
                case "verdict":
                    self._keep_verdict(order["verdict"])
                case "finish":
                    self._keep_verdict(order.get("verdict"))
                    self.finish = order
                case unknown if not self.work.obey(order):
                    say(f"cannot obey the controller: unknown order {unknown!r}")
        except (KeyError, TypeError, AttributeError) as error:
            say(f"cannot obey the controller's order {order['op']!r}: {error!r}")

    def _keep_verdict(self, verdict: object) -> None:
        if isinstance(verdict, dict):
            self.verdict = verdict

    def _check_watch(self) -> None:
        """Kill a controller that is silent or stuck; start the next one when it is time."""
        watch, now_s = self.watch, self.clock.now_s()
        cause = watch.find_kill_cause(now_s)
        if cause and watch.child is not None:
            watch.kill_cause = cause
            watch.child.send_signal(signal.SIGKILL)
        if watch.restart_due_s is not None and now_s >= watch.restart_due_s and self._listener is not None:
            self._start_controller(self._listener)

    def _end_controller(self, child: Child, status: int) -> None:
        """Take its last words, which may be `finish`, and only then its end."""
        child.settle_exec()
        child.note_status(status)
        self._take_link()
        self._lose_controller(child)

    def _lose_controller(self, child: Child) -> None:
        if self.watch.link is not None:
            self.watch.link.close()
            self.watch.link = None
        if self.finish is not None or self.own_end is not None:
            return
        how = self.watch.kill_cause or child.describe_end()
        now_s = self.clock.now_s()
        if self.watch.note_end(now_s):
            say(f"the controller {how}; it is started again ({self.watch.used} of {RESTARTS})")
        else:
            for line in read_tail(self.run.log_path):
                write_stderr(f"  {line}\n".encode())
            self.end(CONTROLLER_LOST, f"the controller {how}, after {RESTARTS} restarts", FAILED_EXIT)
        if self.stops:
            self._obey_due_s = now_s + self._obey_limit_s

    def _check_obeyed(self) -> None:
        """A stop signal must not wait for a controller that is not there."""
        if self._obey_due_s is not None and self.clock.now_s() >= self._obey_due_s:
            cause = f"SIG{self.stops[0]['signal']} was received, and there was no controller to act on it"
            self.end(SIGNAL, cause, self._stop_code(), SHORT_GRACE_S)


def run_stub(path: str) -> int:
    """Be the stub of the run whose record is at this path; returns the exit code of the whole run."""
    stub_signals.block_signals()
    # A trainer that took the terminal must not stop us when we print.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    open_standard_fds()
    try:
        run = Run(path)
    except (OSError, ValueError, KeyError) as error:
        say(f"cannot read the run record {path}: {error!r}")
        return INTERNAL_EXIT
    kernel.become_subreaper()
    return Stub(run).serve()


def exec_stub(python: str, path: str) -> None:
    """Become the stub: same pid, terminal and process group. Never returns.

    The signals are blocked before exec: one that arrives while Python starts is read by the stub, not lost.
    """
    stub_signals.block_signals()
    os.execv(python, [python, "-P", "-m", "retinue", "stub", path])


def main(argv: list[str]) -> int:
    """`retinue stub RUN_JSON`: started by `retinue run` and `up`, not by people."""
    if len(argv) != 1:
        say("usage: retinue stub RUN_JSON")
        return 2
    return run_stub(argv[0])
