"""The two children that do the run's work: the launch of all nodes, and the trainer. Each is started once at most.

Every change is told to whoever is the controller now; a later one reads it in its hello. Standard library only.
"""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from retinue.node import spawn
from retinue.node.census import LAUNCH_TAG
from retinue.supervise.stub_bounded import run_bounded
from retinue.supervise.stub_children import Child
from retinue.supervise.stub_deaf import Ears
from retinue.supervise.stub_leftovers import scan_left
from retinue.supervise.stub_proof import Proof, read_noise
from retinue.supervise.stub_run import Run, say, write_stderr
from retinue.supervise.stub_signals import parse_signal
from retinue.supervise.stub_srun import has_srun

LINE_BYTES = 1 << 16
"""A longer line of the launch is no report; it is passed to stderr in pieces."""
WORDS_CHARS = 500
"""Of a line that is no report; srun's errors are short."""
PIECES = 64
"""Read in one go; a launch that prints without end gets its turn like the rest."""
SCAN_LIMIT_S = 2.0
"""What the trainer left is looked for this long when it exits; the end looks again, and longer."""
STOP_FD = "RETINUE_STOP_FD"
"""In the trainer's environment: the descriptor whose end of file means that the stub is gone."""

Tell = Callable[[dict[str, Any]], None]


class Work:
    """Launch and trainer, and the reports of the nodes that the launch prints."""

    def __init__(
        self, run: Run, stop_fd: int, inherited: tuple[int, ...], ignored: tuple[int, ...], tell: Tell
    ) -> None:
        self.run = run
        self.launch: Child | None = None
        self.trainer: Child | None = None
        self.nodes: dict[str, dict[str, Any]] = {}
        """Final report of each node's outer process."""
        self.expected: list[str] = []
        """Nodes that the launch order named."""
        self.proof = Proof()
        self.spared: list[int] = []
        """Children of ours that are neither the run's work nor left behind: controller, hung helpers."""
        self._stop_fd = stop_fd
        self._inherited = inherited
        self._ignored = ignored
        self._tell = tell
        self._pipe_fd = -1
        self._ears: Ears | None = None
        """Of a launch that is to be deaf; holds the listener as long as the stub lives."""
        self._line = b""
        self._has_words = False
        """What the launch prints beside reports is the controller's to read."""
        self._noise: tuple[bytes, ...] = ()
        """How lines begin that are for nobody."""

    def list_fds(self) -> dict[int, Callable[[], None]]:
        """Say what to wait for, and what to call then."""
        fds: dict[int, Callable[[], None]] = {self._pipe_fd: self.read_launch} if self._pipe_fd >= 0 else {}
        if self.launch and self.launch.is_exec_pending:
            fds[self.launch.status_fd] = self.settle_launch
        if self.trainer and self.trainer.is_exec_pending:
            fds[self.trainer.status_fd] = self.settle_trainer
        return fds

    def obey(self, order: dict[str, Any]) -> bool:
        """Do what a controller wants of launch or trainer; False when the order is about neither."""
        match order["op"]:
            case "launch":
                self.start_launch(order)
            case "trainer":
                self.start_trainer(order)
            case "signal_trainer" if order.get("spares_srun") and self.trainer and has_srun(self.trainer.pid):
                pass
            case "signal_trainer":
                self.signal_child(self.trainer, order["signal"])
            case "signal_launch":
                self.signal_child(self.launch, order["signal"])
            case _:
                return False
        return True

    # --- the launch -----------------------------------------------------------------

    def start_launch(self, order: dict[str, Any]) -> None:
        """Start the launch of all nodes, in a session of its own; asked again, tell what is."""
        if self.launch is not None:
            self._tell_state("launch", self.launch)
            return
        self.expected = [str(name) for name in order.get("nodes") or ()]
        self.proof.take_order(order)
        argv = [str(word) for word in order["argv"]]
        has_stop_fd = bool(order.get("stop_fd"))
        self._has_words = bool(order.get("has_words"))
        self._noise = read_noise(order)
        ears = Ears() if order.get("is_deaf") else None
        self._pipe_fd, far = os.pipe()
        os.set_blocking(self._pipe_fd, False)
        self.launch = Child(
            spawn.Command(
                argv=[*argv, "--stop-fd", str(self._stop_fd)] if has_stop_fd else argv,
                env={**_read_env(order), LAUNCH_TAG: self.run.run_id},
                cwd=order.get("cwd"),
                stdout=far,
                stderr=far if self._has_words else 2,
                keep_fds=(self._stop_fd,) if has_stop_fd else (),
                # An outer process that we start ourselves: a stop in its first moment must find it able to report.
                blocked=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if has_stop_fd else (),
            ),
            steps=[("ears", ears.close_in_child)] if ears else (),
        )
        self._ears = ears
        os.close(far)
        self.settle_launch()

    def settle_launch(self) -> None:
        if self.launch is not None and self.launch.settle_exec():
            if self._ears is not None:
                self.launch.is_deaf = self._ears.take_listener()
            self._tell_state("launch", self.launch)

    @property
    def is_launch_leaving(self) -> bool:
        """Every node has reported: the launch is about to exit, and is to be looked at often."""
        launch = self.launch
        return launch is not None and launch.is_deaf and launch.is_alive and self.nodes.keys() >= set(self.expected)

    def look_at_launch(self) -> None:
        """Let a deaf launch end."""
        if self._ears is not None and self.launch is not None and self.launch.is_alive:
            self._ears.check()

    def read_launch(self) -> None:
        """Read what the launch prints: final reports are kept and passed on, the rest is for people."""
        for _ in range(PIECES):
            if self._pipe_fd < 0:
                return
            try:
                data = os.read(self._pipe_fd, LINE_BYTES)
            except BlockingIOError:
                return
            *lines, self._line = (self._line + data).split(b"\n")
            if not data or len(self._line) > LINE_BYTES:
                lines.append(self._line)
                self._line = b""
            for line in filter(None, lines):
                self._take_line(line)
            if not data:
                os.close(self._pipe_fd)
                self._pipe_fd = -1

    def _take_line(self, line: bytes) -> None:
        report: Any = None
        if line.lstrip().startswith(b"{"):
            try:
                report = json.loads(line)
            except ValueError:
                pass
        name = report.get("retinue_node") if isinstance(report, dict) else None
        if not isinstance(name, str) and line.startswith(self._noise):
            return
        if not isinstance(name, str):
            write_stderr(line + b"\n")
            if self._has_words:
                self._tell({"ev": "launch_said", "line": line.decode(errors="replace")[:WORDS_CHARS]})
            return
        self.nodes[name] = report
        self._tell({"ev": "node", "report": report})

    # --- the trainer ----------------------------------------------------------------

    def start_trainer(self, order: dict[str, Any]) -> None:
        """Start the user's command in the caller's own process group; asked again, tell what is.

        The terminal, the descriptors that the caller handed down and the signals it ignored (`nohup`) are the
        trainer's as if it had been started without us.
        """
        if self.trainer is not None:
            self._tell_state("trainer", self.trainer)
            return
        self.trainer = Child(
            spawn.Command(
                argv=[str(word) for word in order["argv"]],
                env={**_read_env(order), STOP_FD: str(self._stop_fd)},
                cwd=order.get("cwd") or self.run.start_dir,
                stdin=0,
                stdout=1,
                stderr=2,
                keep_fds=(self._stop_fd, *self._inherited),
                new_session=False,
                pdeathsig=signal.SIGTERM,
            ),
            steps=[("signals", self._ignore_again), ("group", self._leave_group)],
        )
        for fd in self._inherited:
            # Else the far end of the caller's `<(...)` would not see its end before ours.
            os.close(fd)
        self._inherited = ()
        self.settle_trainer()

    def settle_trainer(self) -> None:
        if self.trainer is not None and self.trainer.settle_exec():
            self._tell_state("trainer", self.trainer)

    def _leave_group(self) -> None:
        """Where no terminal's Ctrl-C counts on our group, leave it: `scancel --full --signal` signals the batch
        script's group, and a TERM that srun gets before us ends the trainer's tasks at once."""
        if self.run.job_id and not _has_terminal():
            os.setpgid(0, 0)

    def _ignore_again(self) -> None:
        for number in self._ignored:
            signal.signal(number, signal.SIG_IGN)

    # --- both -----------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Say what is, for the hello of a controller that was not there."""
        return {
            "launch": self.launch.describe() if self.launch else None,
            "trainer": self.trainer.describe() if self.trainer else None,
            "nodes": self.nodes,
        }

    def signal_child(self, child: Child | None, name: object) -> None:
        """Obey a signal order; one for a child that has gone meanwhile does nothing."""
        number = parse_signal(name)
        if child is None or number is None:
            say(f"cannot send signal {name!r}: {'no such signal' if child else 'that was never started'}")
            return
        child.send_signal(number)

    def take_exit(self, pid: int, status: int) -> None:
        """Note the end of a child, and tell it; other pids are orphans and helpers."""
        if pid in self.spared:
            # The kernel may give the number to somebody else from now on.
            self.spared.remove(pid)
        if self.launch is not None and pid == self.launch.pid:
            self.read_launch()  # First: its last words say why it ended.
            self._end_child("launch", self.launch, status)
        elif self.trainer is not None and pid == self.trainer.pid:
            self._end_child("trainer", self.trainer, status)
            self._report_left()
        else:
            self.proof.take_exit(pid, status)

    def _end_child(self, name: str, child: Child, status: int) -> None:
        if child.is_exec_pending:
            self.settle_launch() if child is self.launch else self.settle_trainer()
        child.note_status(status)
        if not child.is_refused:
            self._tell({"ev": f"{name}_exited", **child.describe_exit()})

    def _tell_state(self, name: str, child: Child) -> None:
        if child.is_refused:
            self._tell(
                {"ev": f"{name}_refused", "errno": child.errno, "cause": child.cause, "exit_code": child.refused_code}
            )
        elif not child.is_exec_pending:
            self._tell({"ev": f"{name}_started", "pid": child.pid})
            if not child.is_alive:
                self._tell({"ev": f"{name}_exited", **child.describe_exit()})

    def _report_left(self) -> None:
        """Tell what the trainer left running; it is ended at the end of the run, not now."""
        stub = os.getpid()
        spared = [child.pid for child in (self.launch,) if child and child.is_alive] + self.spared
        mark = f"{LAUNCH_TAG}={self.run.run_id}".encode()
        answer = run_bounded(lambda: [p.pack() for p in scan_left(stub, None, spared, mark)], SCAN_LIMIT_S)
        self.spared.append(answer.pid)
        left = [{"pid": pid, "cmd": cmd} for pid, _start, cmd in answer.value or ()]
        if left:
            self._tell({"ev": "leftovers", "pids": left})


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _read_env(order: dict[str, Any]) -> dict[str, str]:
    env = order.get("env")
    return dict(os.environ) if env is None else {str(name): str(value) for name, value in env.items()}
