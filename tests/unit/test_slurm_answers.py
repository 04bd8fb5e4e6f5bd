"""What scontrol prints, read: whatever is odd about it is Unknown, and Unknown is never gone."""

import pytest

from retinue.slurm.answers import JobState, KillTimes, Unknown, parse_job, parse_kill_times, parse_time

RUNNING = (
    "JobId=15 JobName={name} UserId=rl(1001) GroupId=rl(1001) MCS_label=N/A Priority=1 Nice=0 Account=(null) QOS=x "
    "JobState={state} Reason={reason} Dependency=(null) Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 "
    "ExitCode=0:0 RunTime=00:00:03 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=2026-11-30T20:14:43 "
    "EligibleTime=2026-11-30T20:14:43 AccrueTime=2026-11-30T20:14:43 StartTime=2026-11-30T20:14:43 EndTime={end} "
    "Deadline=N/A PreemptEligibleTime=2026-11-30T20:14:43 PreemptTime={preempted} SuspendTime=None SecsPreSuspend=0 "
    "LastSchedEval=2026-11-30T20:14:43 Scheduler=Main Partition=low AllocNode:Sid=login:7 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList=node[1-3] BatchHost=node1 NumNodes=3 NumCPUs=3 Command={command} WorkDir=/rl Power=\n"
)
"""As Slurm 22.05.8 prints it with TZ=UTC0."""


def build(**changes: str) -> str:
    fields = {
        "name": "demo",
        "state": "RUNNING",
        "reason": "None",
        "restarts": "0",
        "end": "2026-11-30T21:14:43",
        "preempted": "None",
        "command": "(null)",
    }
    return RUNNING.format(**fields | changes)


def read(**changes: str) -> JobState:
    answer = parse_job(build(**changes))
    assert isinstance(answer, JobState), answer
    return answer


def test_a_running_job_is_read_with_its_end_in_utc() -> None:
    expected = JobState("RUNNING", "", 1796073283.0, 0, True, False, "node1", "low")
    assert read() == expected
    assert not expected.is_final


@pytest.mark.parametrize("name", ["a b", "x=y JobStat=ok", "kolibri rl (2)"])
def test_a_name_with_spaces_moves_no_field(name: str) -> None:
    assert read(name=name, command=f"/home/rl/{name}.sh") == read()


@pytest.mark.parametrize("end", ["Unknown", "NONE"])
def test_a_job_without_a_time_limit_has_no_end(end: str) -> None:
    assert read(end=end).end_utc is None


def test_slurms_reason_its_restarts_and_a_preemption_under_way_are_kept() -> None:
    stopped = read(state="COMPLETING", reason="TimeLimit", restarts="2")
    assert (stopped.state, stopped.reason, stopped.restarts) == ("COMPLETING", "TimeLimit", 2)
    assert read(reason="Nodes required for job are DOWN, DRAINED or reserved").reason.startswith("Nodes required")
    assert read(preempted="2026-11-30T20:24:44").is_preempted


def test_final_is_only_what_a_job_never_leaves() -> None:
    assert [
        word for word in ("TIMEOUT", "NODE_FAIL", "COMPLETING", "PENDING", "NOT_KNOWN") if JobState(word).is_final
    ] == [
        "TIMEOUT",
        "NODE_FAIL",
    ]


@pytest.mark.parametrize(
    "text", ["", "\n", "slurm_load_jobs error", "JobId=1 JobState=RUNNING", build(end="soon"), build(end="1796053285")]
)
def test_an_answer_that_cannot_be_read_is_unknown(text: str) -> None:
    assert isinstance(parse_job(text), Unknown)


def test_times_are_utc_whatever_the_machine_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    assert parse_time("1970-01-02T00:00:01") == 86401.0


@pytest.mark.parametrize(
    ("config", "partition", "expected"),
    [
        ("KillOnBadExit           = 0\nKillWait                = 30 sec\n", "", KillTimes(30.0)),
        ("KillWait = 5 sec\n", "PartitionName=low GraceTime=120 Hidden=NO", KillTimes(5.0, 120.0)),
        ("KillWait = 5 sec\n", "PartitionName=low GraceTime=00:02:00 Hidden=NO", KillTimes(5.0, 120.0)),
        ("KillWait = 5 sec\n", "PartitionName=low GraceTime=1-00:00:01 Hidden=NO", KillTimes(5.0, 86401.0)),
    ],
)
def test_how_long_slurm_waits_is_read(config: str, partition: str, expected: KillTimes) -> None:
    assert parse_kill_times(config, partition) == expected


def test_a_configuration_without_the_number_is_unknown() -> None:
    assert isinstance(parse_kill_times("UnkillableStepTimeout = 60 sec\n"), Unknown)
