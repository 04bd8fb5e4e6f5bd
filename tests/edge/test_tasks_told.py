"""The outer process finds the trainer's tasks below a process that is called slurmstepd, and tells each one once."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from retinue.node.tasks import Tasks

JOB = {"SLURM_JOB_ID": "7"}
STEPD = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(15, b"slurmstepd", 0, 0, 0)
for line in sys.stdin:
    env = dict(word.split("=") for word in line.split())
    child = subprocess.Popen([sys.executable, "-S", sys.argv[1], sys.argv[2]], env=env)
    print(child.pid, flush=True)
"""
TASK = """
import os, signal, sys
def note(number, frame):
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{os.getpid()} {number}\\n".encode())
    os.close(fd)
signal.signal(signal.SIGTERM, note)
note(0, None)
while True:
    signal.pause()
"""


@dataclass
class Stepd:
    """The parent of tasks."""

    process: subprocess.Popen[str]
    log: Path
    pids: list[int]

    def start(self, **env: str) -> int:
        """Start a task with this environment; returns when it can take signals."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(f"{name}={value}" for name, value in (JOB | env).items()) + "\n")
        self.process.stdin.flush()
        pid = int(self.process.stdout.readline())
        self.pids.append(pid)
        self.wait_for(f"{pid} 0")
        return pid

    def wait_for(self, line: str) -> None:
        with subprocess.Popen(["tail", "-f", "-n", "+1", str(self.log)], stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            for said in tail.stdout:
                if said.strip() == line:
                    break
            tail.kill()

    def said(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def stepd(tmp_path: Path) -> Iterator[Stepd]:
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "log").touch()
    argv = [sys.executable, "-S", "-c", STEPD, str(tmp_path / "task.py"), str(tmp_path / "log")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        found = Stepd(process, tmp_path / "log", [])
        yield found
        for pid in found.pids:
            os.kill(pid, signal.SIGKILL)
        process.kill()


def test_a_task_is_told_once_however_often_it_is_asked(stepd: Stepd) -> None:
    pid = stepd.start(SLURM_STEP_ID="1")
    tasks = Tasks("abc", JOB | {"SLURM_STEP_ID": "0"})
    assert [tasks.tell(signal.SIGTERM) for _ in range(3)] == [(1, 1)] * 3
    stepd.wait_for(f"{pid} 15")
    assert stepd.said().count(f"{pid} 15") == 1


def test_a_task_that_comes_later_is_told_then_and_the_first_one_not_again(stepd: Stepd) -> None:
    first = stepd.start(SLURM_STEP_ID="1")
    tasks = Tasks("abc", JOB)
    assert tasks.tell(signal.SIGTERM) == (1, 1)
    second = stepd.start(SLURM_STEP_ID="2")
    assert tasks.tell(signal.SIGTERM) == (2, 2)
    for pid in (first, second):
        stepd.wait_for(f"{pid} 15")
    assert sorted(line for line in stepd.said() if line.endswith(" 15")) == sorted([f"{first} 15", f"{second} 15"])


def test_our_own_step_the_spared_one_and_what_is_in_none_are_left_alone(stepd: Stepd) -> None:
    for env in ({"SLURM_STEP_ID": "0"}, {"SLURM_STEP_ID": "4"}, {}, {"SLURM_STEP_ID": "1", "RETINUE_LAUNCH": "abc"}):
        stepd.start(**env)
    tasks = Tasks("abc", JOB | {"SLURM_STEP_ID": "0"})
    assert tasks.tell(signal.SIGKILL, spared_step="4") == (0, 0)
    assert Tasks("abc", {}).tell(signal.SIGKILL) == (0, 0)


def test_without_a_signal_they_are_only_counted_and_one_that_has_ended_does_not_run(stepd: Stepd) -> None:
    pid = stepd.start(SLURM_STEP_ID="1")
    tasks = Tasks("abc", JOB)
    assert tasks.tell(0) == (1, 1)
    assert stepd.said() == [f"{pid} 0"]
    assert tasks.tell(signal.SIGKILL)[0] == 1
    while tasks.tell(signal.SIGKILL)[1]:
        pass
    assert tasks.tell(signal.SIGKILL) == (1, 0)
