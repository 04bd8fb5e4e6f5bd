"""The end of an attempt in a Slurm job: another one is asked for once, after the verdict, or not at all."""

import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm
from stub_rig import Rig

from retinue.journal.verdict import Verdict, render_verdict
from retinue.terms.record import from_json

POLICY: dict[str, Any] = {"job_id": "7", "requeue_on": ["timeout", "node_fail"], "requeue_max": 2}
SHOWN = (
    "print('JobId=7 JobName=x JobState=COMPLETING Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} "
    "StartTime=2026-11-30T20:00:00 EndTime=2026-11-30T21:00:00 Deadline=N/A Partition=low')"
)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    slurm = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{slurm.bin}:{os.environ['PATH']}")
    return slurm


@pytest.fixture
def rig(tmp_path: Path, slurm: FakeSlurm) -> Generator[Rig, None, None]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


def build_scontrol(reason: str = "None", restarts: int = 0, requeue: str = "") -> str:
    """`show job` answers; `requeue` notes what the verdict said when it was asked."""
    show = SHOWN.format(reason=reason, restarts=restarts)
    return f"if 'show' in sys.argv:\n    {show}\nelse:\n    pass\n    {requeue}\n"


def end_by(ended_by: str, code: int = 5) -> str:
    return f"finish({code}, {{'ended_by': {ended_by!r}, 'cause': 'told so'}})"


def list_acts(slurm: FakeSlurm) -> list[list[str]]:
    return [call["argv"][1:] for call in slurm.calls("scontrol") if "show" not in call["argv"]]


def test_the_verdict_says_that_another_attempt_follows_before_it_is_asked_for(rig: Rig, slurm: FakeSlurm) -> None:
    copy = f"import shutil; shutil.copy({str(rig.attempt_dir / 'verdict.json')!r}, {str(rig.run_dir / 'seen')!r})"
    slurm.play("scontrol", build_scontrol(requeue=copy))
    assert rig.run(end_by("deadline"), **POLICY) == 5
    assert list_acts(slurm) == [["requeue", "7"]]
    seen = json.loads((rig.run_dir / "seen").read_text())
    assert seen["requeued"] is True
    assert "attempt 1 of 2" in seen["requeue"]
    assert seen == rig.verdict
    assert "attempt 1 of 2" in render_verdict(from_json((rig.attempt_dir / "verdict.json").read_bytes(), Verdict))
    assert "attempt 1 of 2" in rig.stderr


def test_a_refusal_of_slurm_is_in_the_verdict(rig: Rig, slurm: FakeSlurm) -> None:
    slurm.play("scontrol", "sys.exit('Requested operation is presently disabled for job 7')")
    assert rig.run(end_by("deadline"), **POLICY) == 5
    assert rig.verdict["requeued"] is False
    assert "presently disabled" in rig.verdict["requeue"]


@pytest.mark.parametrize(
    ("ended_by", "fields"),
    [
        ("trainer", {}),
        ("operator", {}),
        ("fail_run", {}),
        ("preempted", {}),
        ("deadline", {"attempt": 2}),
    ],
)
def test_an_end_that_is_final_or_once_too_often_is_not_tried_again(
    rig: Rig, slurm: FakeSlurm, ended_by: str, fields: dict[str, Any]
) -> None:
    slurm.play("scontrol", build_scontrol())
    rig.run(end_by(ended_by), **POLICY, **fields)
    assert list_acts(slurm) == []
    assert rig.verdict["requeued"] is False
    assert rig.verdict["requeue"].startswith("not queued again")


def test_a_lost_node_that_slurm_has_requeued_for_itself_is_not_requeued_twice(rig: Rig, slurm: FakeSlurm) -> None:
    slurm.play("scontrol", build_scontrol(restarts=1))
    rig.run(end_by("node_lost"), **POLICY)
    assert list_acts(slurm) == []
    assert rig.verdict["requeued"] is True


def test_without_a_policy_or_outside_a_job_slurm_is_left_alone(rig: Rig, slurm: FakeSlurm) -> None:
    slurm.play("scontrol", build_scontrol())
    rig.run(end_by("deadline"), **{**POLICY, "job_id": ""})
    assert (slurm.calls("scontrol"), "requeue" in rig.verdict) == ([], False)


@pytest.mark.parametrize(
    ("number", "told", "ended_by", "acts"),
    [
        (signal.SIGUSR2, {}, "timeout", [["requeue", "7"]]),
        (signal.SIGTERM, {"reason": "TimeLimit"}, "timeout", [["requeue", "7"]]),
        (signal.SIGTERM, {"restarts": 1}, "preempted", []),
        (signal.SIGTERM, {}, "signal", []),
        (signal.SIGINT, {}, "signal", []),
    ],
)
def test_a_signal_means_what_slurm_says_it_means(
    rig: Rig, slurm: FakeSlurm, number: int, told: dict[str, Any], ended_by: str, acts: list[list[str]]
) -> None:
    slurm.play("scontrol", build_scontrol(**told))
    rig.start(f"hear('stop')\n{end_by('signal', 143)}", **POLICY)
    rig.await_event("hello")
    rig.signal_stub(number)
    rig.wait()
    assert rig.verdict["ended_by"] == ended_by
    assert list_acts(slurm) == acts


def test_a_slurm_that_does_not_answer_delays_the_end_by_seconds_and_decides_nothing(rig: Rig, slurm: FakeSlurm) -> None:
    slurm.play("scontrol", "time.sleep(600)")
    rig.start(f"hear('stop')\n{end_by('signal', 143)}", **POLICY)
    rig.await_event("hello")
    rig.signal_stub(signal.SIGTERM)
    rig.wait()
    assert rig.verdict["ended_by"] == "signal"
    assert rig.verdict["requeued"] is False


def test_an_attempt_that_was_fenced_writes_nothing_more(rig: Rig, slurm: FakeSlurm) -> None:
    slurm.play("scontrol", build_scontrol())
    lock = rig.run_dir / "lock"
    lock.write_text(json.dumps({"run_id": "another", "attempt": 1}))
    assert rig.run(end_by("fenced"), **POLICY) == 5
    assert not (rig.attempt_dir / "verdict.json").exists()
    assert json.loads(lock.read_text())["run_id"] == "another"
    assert slurm.calls("scontrol") == []
    assert not rig.controller_dir.exists()
