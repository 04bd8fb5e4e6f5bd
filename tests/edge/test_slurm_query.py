"""Asking Slurm: commands that hang, fail or lie, and pyslurm that is there, broken, or stuck."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm

from retinue.slurm import commands
from retinue.slurm.answers import NOT_KNOWN, JobState, KillTimes, Unknown
from retinue.slurm.query import REST_S, SlurmDesk

LINE = (
    "JobId=7 JobName=x UserId=rl(1) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 "
    "StartTime=2026-11-30T20:00:00 EndTime=2026-11-30T21:00:00 Deadline=N/A Partition=low BatchHost=node1 Power="
)
END_UTC = 1796072400.0
RECORD = Path(__file__).parents[1] / "golden" / "pyslurm-25.11.json"
"""What pyslurm 25.11.2 answered on a real Slurm 25.11.7."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    # What is installed on this machine, or not, is no part of these tests.
    monkeypatch.setattr("retinue.slurm.query.is_pyslurm_there", lambda: False)
    return FakeSlurm(tmp_path)


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


def build_desk(slurm: FakeSlurm, clock: list[float], said: list[str] | None = None, **env: str) -> SlurmDesk:
    own = {"PATH": slurm.path, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **env}
    return SlurmDesk(own, (said if said is not None else []).append, lambda: clock[0])


def test_the_end_comes_from_one_question_in_an_environment_of_our_own(slurm: FakeSlurm, clock: list[float]) -> None:
    slurm.play("scontrol", f"print({LINE!r})")
    desk = build_desk(slurm, clock, SLURM_TIME_FORMAT="relative", TZ="Asia/Tokyo", SLURM_CONF="/x/slurm.conf")
    assert desk.read_end_utc("7") == END_UTC
    [call] = slurm.calls("scontrol")
    assert call["argv"][1:] == ["show", "job", "-o", "7"]
    assert (call["env"]["TZ"], call["env"]["SLURM_CONF"]) == ("UTC0", "/x/slurm.conf")
    assert "SLURM_TIME_FORMAT" not in call["env"]


def test_a_second_question_within_a_minute_is_answered_without_slurm(slurm: FakeSlurm, clock: list[float]) -> None:
    slurm.play("scontrol", f"print({LINE!r})")
    desk = build_desk(slurm, clock)
    first = desk.read_job_state("7")
    clock[0] += REST_S - 1
    assert desk.read_end_utc("7") == END_UTC
    assert desk.read_job_state("7") == first
    assert len(slurm.calls("scontrol")) == 1
    clock[0] += 1
    desk.read_job_state("7")
    assert len(slurm.calls("scontrol")) == 2


@pytest.mark.parametrize(
    "part",
    [
        "sys.exit('slurm_load_jobs error: Unable to contact slurm controller (connect failure)')",
        "sys.exit(1)",
        "print('')",
        "print('JobId=7 garbage')",
        "os.kill(os.getpid(), 9)",
        "sys.stdout.buffer.write(bytes(range(256)))",
    ],
)
def test_an_answer_that_says_nothing_is_unknown_and_asked_no_sooner(
    slurm: FakeSlurm, clock: list[float], part: str
) -> None:
    slurm.play("scontrol", part)
    desk = build_desk(slurm, clock)
    assert isinstance(desk.read_job_state("7"), Unknown)
    assert isinstance(desk.read_end_utc("7"), Unknown)
    assert len(slurm.calls("scontrol")) == 1


def test_a_silent_slurmctld_is_unknown_and_the_command_with_its_children_is_ended(
    slurm: FakeSlurm, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.play("scontrol", "print(os.getpid(), flush=True)\nif os.fork() == 0: pass\ntime.sleep(600)")
    answer = commands.ask_slurm(["scontrol", "show", "config"], {"PATH": slurm.path}, limit_s=1.0)
    assert isinstance(answer, Unknown)
    assert "1 s" in answer.why
    mark = str(slurm.bin).encode()
    alive = [name for name in os.listdir("/proc") if name.isdigit() and mark in read_argv(name)]
    assert alive == []


def read_argv(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_job_that_slurm_does_not_know_is_an_answer_and_its_end_is_unknown(
    slurm: FakeSlurm, clock: list[float]
) -> None:
    slurm.play("scontrol", "sys.exit('slurm_load_jobs error: Invalid job id specified')")
    desk = build_desk(slurm, clock)
    assert desk.read_job_state("7") == JobState(NOT_KNOWN)
    assert isinstance(desk.read_end_utc("7"), Unknown)


def test_no_command_at_all_is_unknown(slurm: FakeSlurm, clock: list[float]) -> None:
    desk = SlurmDesk({"PATH": str(slurm.bin)}, [].append)
    assert isinstance(desk.read_job_state("7"), Unknown)
    assert isinstance(desk.read_kill_wait(), Unknown)
    assert isinstance(desk.cancel_job("7"), Unknown)


def test_slurms_patience_is_read_from_its_configuration_and_the_partition(slurm: FakeSlurm, clock: list[float]) -> None:
    part = "print('KillWait = 30 sec' if 'config' in sys.argv else 'PartitionName=low GraceTime=60 Hidden=NO')"
    slurm.play("scontrol", part)
    desk = build_desk(slurm, clock)
    assert desk.read_kill_wait() == KillTimes(30.0)
    assert desk.read_kill_wait("low") == KillTimes(30.0, 60.0)


def test_what_is_asked_of_slurm_is_done_or_its_refusal_is_told(slurm: FakeSlurm, clock: list[float]) -> None:
    slurm.play("scontrol", "sys.exit('Requested operation is presently disabled for job 7')")
    slurm.play("scancel", "")
    desk = build_desk(slurm, clock)
    refused = desk.requeue_job("7")
    assert refused is not None
    assert "disabled" in refused.why
    assert desk.cancel_job("7") is None
    assert slurm.calls("scontrol")[0]["argv"][1:] == ["requeue", "7"]
    assert slurm.calls("scancel")[0]["argv"][1:] == ["7"]


# --- pyslurm ------------------------------------------------------------------------------

LIBRARY = """
import json, os, time
class RPCError(Exception): pass
class Job:
    def __init__(self, record): self.record = record
    def to_dict(self): return self.record
    @staticmethod
    def load(job_id):
        {load}
"""


@pytest.fixture
def library(tmp_path: Path, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for PYTHONPATH in which a test puts its pyslurm."""
    monkeypatch.setattr("retinue.slurm.query.is_pyslurm_there", lambda: True)
    slurm.play("scontrol", f"print({LINE!r})")
    return tmp_path


def put_library(library: Path, load: str = "", text: str = "") -> str:
    (library / "pyslurm.py").write_text(text or LIBRARY.format(load=load))
    return os.pathsep.join(filter(None, (str(library), os.environ.get("PYTHONPATH", ""))))


def test_pyslurm_is_asked_first_and_the_command_line_then_not_at_all(
    library: Path, slurm: FakeSlurm, clock: list[float]
) -> None:
    said: list[str] = []
    path = put_library(library, f"return Job(json.load(open({str(RECORD)!r}))['job'])")
    answer = build_desk(slurm, clock, said, PYTHONPATH=path).read_job_state("1")
    assert answer == JobState("RUNNING", "", 1796053285.0, 0, True, False, "node1", "main")
    assert (slurm.calls("scontrol"), said) == ([], [])
    # Whoever asks must not have the library in its own process.
    assert "pyslurm" not in sys.modules


def test_pyslurms_unknown_job_is_the_same_answer_as_scontrols(
    library: Path, slurm: FakeSlurm, clock: list[float]
) -> None:
    path = put_library(library, "raise RPCError('Invalid job id specified')")
    assert build_desk(slurm, clock, PYTHONPATH=path).read_job_state("1") == JobState(NOT_KNOWN)
    assert slurm.calls("scontrol") == []


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"text": "raise ImportError('libslurm.so.43: cannot open shared object file')"}, "libslurm.so.43"),
        ({"text": "raise RuntimeError('built for Slurm 25.11, found 22.05')"}, "built for"),
        ({"text": "import os; os._exit(1)"}, "1"),
        ({"text": "x = 1"}, "AttributeError"),
        ({"load": "raise RPCError('Protocol authentication error')"}, "authentication"),
        ({"load": "return Job({'state': 'RUNNING'})"}, "state_reason"),
        ({"load": "print('debug: hello'); return Job({})"}, "pyslurm"),
    ],
)
def test_a_pyslurm_that_cannot_be_used_gives_way_to_the_command_line_and_why_is_said_once(
    library: Path, slurm: FakeSlurm, clock: list[float], broken: dict[str, Any], says: str
) -> None:
    said: list[str] = []
    desk = build_desk(slurm, clock, said, PYTHONPATH=put_library(library, **broken))
    assert desk.read_end_utc("7") == END_UTC
    clock[0] += 2 * REST_S
    assert desk.read_end_utc("7") == END_UTC
    assert len(slurm.calls("scontrol")) == 2
    assert len(said) == 1
    assert says in said[0]


def test_a_pyslurm_that_hangs_is_ended_and_not_asked_again(
    library: Path, slurm: FakeSlurm, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.slurm.pyslurm_job.ask_slurm", ask_briefly)
    said: list[str] = []
    desk = build_desk(slurm, clock, said, PYTHONPATH=put_library(library, "time.sleep(600)"))
    assert desk.read_end_utc("7") == END_UTC
    assert len(said) == 1


def ask_briefly(argv: list[str], env: dict[str, str]) -> str | Unknown:
    return commands.ask_slurm(argv, env, limit_s=2.0)
