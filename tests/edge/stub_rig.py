"""A real stub with a scripted controller: what the tests of the stub share.

The controller of a test is a few lines of Python that follow `PRELUDE`. Everything that a stub starts here carries
the run's id in its environment, and is ended by pid when the test is over.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

LIMIT_S = 30.0

PRELUDE = """
import json, os, select, signal, socket, sys, time
run = json.load(open(sys.argv[-7]))
options = dict(zip(sys.argv[-6::2], map(int, sys.argv[-5::2])))
listener = socket.socket(fileno=options["--listener"])
stub = socket.socket(fileno=options["--stub"])
stop_fd = options["--stop"]
log = open(os.path.join(run["run_dir"], "heard.jsonl"), "a", buffering=1)
pending = b""
heard = []

def note(**what):
    log.write(json.dumps({"controller": os.getpid(), **what}) + "\\n")

def say(**order):
    stub.sendall(json.dumps(order).encode() + b"\\n")

def hear(*names, forever=False):
    '''Beat until one of these events arrives; return it.'''
    global pending
    while True:
        for event in list(heard):
            if event["ev"] in names:
                heard.remove(event)
                return event
        say(op="beat")
        if select.select([stub], [], [], 0.1)[0]:
            data = stub.recv(65536)
            if not data:
                sys.exit(1)
            *lines, pending = (pending + data).split(b"\\n")
            for line in lines:
                heard.append(json.loads(line))
                note(**heard[-1])

def trainer(*argv, **env):
    say(op="trainer", argv=list(argv), env={**os.environ, **env}, cwd=run["start_dir"])

def shell(script):
    trainer("/bin/sh", "-c", script)

def finish(code, verdict=None):
    say(op="finish", exit_code=code, verdict=verdict)
    sys.exit(0)

def code_of(event):
    return event["code"] if event["code"] is not None else 128 + event["signal"]

def until_trainer_ends():
    event = hear("trainer_exited", "trainer_refused")
    finish(event["exit_code"] if event["ev"] == "trainer_refused" else code_of(event))

hello = hear("hello")
"""


class Rig:
    """One run: its directories, its stub, and what its controllers heard."""

    def __init__(self, base: Path) -> None:
        self.run_id = secrets.token_hex(6)
        self.run_dir = base / "run"
        self.attempt_dir = self.run_dir / "attempt-0"
        self.node_dir = base / "node"
        self.start_dir = base / "start"
        self.controller_dir = self.node_dir / "controller"
        for path in (self.attempt_dir, self.controller_dir, self.start_dir):
            path.mkdir(parents=True)
        self.heard_path = self.run_dir / "heard.jsonl"
        self.run_json = self.controller_dir / "run.json"
        self.stub: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "RETINUE_RUN_ID": self.run_id}

    def write_record(self, controller: str, **fields: Any) -> list[str]:
        """Write run.json for this scripted controller; return the stub's argv."""
        script = self.run_dir / "controller.py"
        script.write_text(PRELUDE + controller)
        record = {
            "run_id": self.run_id,
            "name": "scripted",
            "attempt": 0,
            "run_dir": str(self.run_dir),
            "attempt_dir": str(self.attempt_dir),
            "node_dir": str(self.node_dir),
            "start_dir": str(self.start_dir),
            "python": sys.executable,
            "started_utc": 1000.0,
            "controller_argv": [sys.executable, "-S", str(script)],
            **fields,
        }
        self.run_json.write_text(json.dumps(record))
        return [sys.executable, "-P", "-m", "retinue", "stub", str(self.run_json)]

    def start(self, controller: str, wrap: tuple[str, ...] = (), pass_fds: tuple[int, ...] = (), **fields: Any) -> None:
        """Start the stub of a run whose controller does this; `wrap` executes the rest of its line."""
        argv = [*wrap, *self.write_record(controller, **fields)]
        with (self.run_dir / "stdout").open("wb") as stdout, (self.run_dir / "stderr").open("wb") as stderr:
            self.stub = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.start_dir,
                env=self.environment,
                pass_fds=pass_fds,
            )

    def start_on_terminal(self, controller: str, slave_fd: int, **fields: Any) -> None:
        """Start it as a login shell would `exec` it: the terminal is its own, and it is in the foreground."""
        take = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
        )
        self.stub = subprocess.Popen(
            [sys.executable, "-S", "-c", take, *self.write_record(controller, **fields)],
            stdin=slave_fd,
            stdout=slave_fd,
            stderr=slave_fd,
            cwd=self.start_dir,
            env=self.environment,
            start_new_session=True,
        )

    def run(self, controller: str, **fields: Any) -> int:
        """Start, and wait for the end."""
        self.start(controller, **fields)
        return self.wait()

    @property
    def stub_pid(self) -> int:
        assert self.stub is not None
        return self.stub.pid

    def signal_stub(self, number: int) -> None:
        """Signal the stub, and wait until it has taken the signal: two pending ones of a kind are one."""
        os.kill(self.stub_pid, number)
        await_true(lambda: not is_pending(self.stub_pid, number), f"signal {number} was taken")

    def wait(self) -> int:
        assert self.stub is not None
        return self.stub.wait(LIMIT_S)

    @property
    def stderr(self) -> str:
        return (self.run_dir / "stderr").read_text()

    @property
    def stdout(self) -> str:
        return (self.run_dir / "stdout").read_text()

    @property
    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = json.loads((self.attempt_dir / "verdict.json").read_text())
        return verdict

    def heard(self, name: str) -> list[dict[str, Any]]:
        """Every event of this name that a controller noted, in order."""
        if not self.heard_path.exists():
            return []
        lines = self.heard_path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event.get("ev") == name]

    def await_event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait until a controller has noted so many of these; return the last."""
        await_true(lambda: len(self.heard(name)) >= count, f"{count} x {name}")
        return self.heard(name)[count - 1]

    def await_file(self, name: str) -> str:
        """Wait until the trainer has written this file (with content) where it was started; return what it says."""
        path = self.start_dir / name
        await_true(lambda: path.exists() and bool(path.read_text()), name)
        return path.read_text()

    def find_tagged(self) -> list[int]:
        """Pids of all that carries this run's id, the stub's own included."""
        tag = f"RETINUE_RUN_ID={self.run_id}".encode()
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                environ = Path(f"/proc/{name}/environ").read_bytes()
                if tag in environ.split(b"\0"):
                    found.append(int(name))
        return found

    def close(self) -> None:
        """End what the test left, by pid."""
        if self.stub is not None and self.stub.poll() is None:
            self.stub.kill()
            self.stub.wait()
        for pid in self.find_tagged():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def await_true(is_so: Callable[[], bool], what: str) -> None:
    """Look until it is so; fail when it is not within the limit."""
    due_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < due_s, f"never came: {what}"
        time.sleep(0.02)


def is_pending(pid: int, number: int) -> bool:
    """Say whether a blocked signal waits to be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return bool(int(status.split("ShdPnd:")[1].split()[0], 16) & 1 << (number - 1))


def is_running(pid: int) -> bool:
    """Say whether the pid is a process that is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
