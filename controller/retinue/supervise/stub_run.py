"""The stub's view of `run.json`, its stderr, and its clock. Standard library only."""

import functools
import json
import os
import select
import stat
import time
from typing import Any

from retinue.supervise.stub_bounded import run_bounded

STDERR = 2
PIECE_BYTES = 4096
"""POSIX: a pipe that polls writable takes PIPE_BUF without blocking."""
FILE_S, HUNG_FILE_S = 1.0, 0.05
"""How long a line may take where stderr is a file; the second after one that took longer."""
_late: list[int] = []
"""The child that could not write the last line, if it could not."""
STALL_S = 2.0
"""Sooner than this after the asked time is load; later, the stub itself did not run (SIGSTOP, Ctrl-Z)."""


class Run:
    """What the pre-flight decided, as far as the stub needs it; `terms.run.RunRecord` says what each means.

    Errors: OSError, ValueError or KeyError when the file is not a run record.
    """

    def __init__(self, path: str) -> None:
        is_stderr_file()  # Now: later the question itself might hang.
        with open(path, "rb") as file:
            record: dict[str, Any] = json.load(file)
        self.path = path
        self.run_id: str = record["run_id"]
        self.name: str = record["name"]
        self.attempt: int = record["attempt"]
        self.run_dir: str = record["run_dir"]
        self.attempt_dir: str = record["attempt_dir"]
        self.node_dir: str = record["node_dir"]
        self.start_dir: str = record["start_dir"]
        self.job_id: str = record.get("job_id") or ""
        self.requeue_on: tuple[str, ...] = tuple(record.get("requeue_on") or ())
        self.requeue_max: int = record.get("requeue_max") or 0
        self.listen_host: str = record.get("listen_host") or "127.0.0.1"
        self.started_utc: float = record.get("started_utc") or time.time()
        self.beat_timeout_s = float(record.get("beat_timeout_s") or 20.0)
        self.controller_argv: list[str] = list(record.get("controller_argv") or ())
        if not self.controller_argv:
            self.controller_argv = [record["python"], "-P", "-m", "retinue", "controller"]

    @property
    def controller_dir(self) -> str:
        """The batch host's own part of the node directory; removed at the end."""
        return os.path.join(self.node_dir, "controller")

    @property
    def log_path(self) -> str:
        return os.path.join(self.controller_dir, "controller.log")


class Clock:
    """Seconds during which the stub itself ran: a stopped stub is no reason to kill anybody."""

    def __init__(self) -> None:
        self._stalled_s = 0.0
        self._last_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._stalled_s

    def note_turn(self, asked_s: float) -> bool:
        """Say whether far more time than was asked for went by since the last turn; it is not counted."""
        now_s = time.monotonic()
        late_s = now_s - self._last_s - asked_s
        self._last_s = now_s
        if late_s <= STALL_S:
            return False
        self._stalled_s += late_s
        return True


def say(text: str) -> None:
    """Write a line of ours to stderr, unless nobody reads it: a stuck terminal never delays a stop."""
    write_stderr(f"retinue: {text}\n".encode())


@functools.cache
def is_stderr_file() -> bool:
    """Whether stderr is a file, as in a batch job: writing may hang, and poll(2) does not know. Asked at the start."""
    return stat.S_ISREG(os.fstat(STDERR).st_mode)


def write_stderr(data: bytes) -> None:
    """Write what stderr takes without blocking; the rest is lost."""
    if is_stderr_file():
        limit_s = HUNG_FILE_S if _late else FILE_S
        written = run_bounded(lambda: os.write(STDERR, data), limit_s, is_vital=True)
        _late[:] = [written.pid] if written.problem else []
        return
    poll = select.poll()
    poll.register(STDERR, select.POLLOUT)
    while data:
        ready = poll.poll(0)
        if not ready or not ready[0][1] & select.POLLOUT:
            return
        try:
            data = data[os.write(STDERR, data[:PIECE_BYTES]) :]
        except OSError:
            return


def read_tail(path: str, count: int = 20) -> list[str]:
    """Read the last lines of a log; empty when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16 * PIECE_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
