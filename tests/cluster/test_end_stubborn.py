"""Trainers that do not do as they are told, and a controller that dies while it waits for one."""

import pytest

from support.cluster import Cluster
from support.ending_run import EndingRun


def test_tasks_that_outlive_the_grace_are_killed_by_the_nodes(cluster: Cluster) -> None:
    run = EndingRun(cluster, save_s=100.0, trainer={"stop": {"grace": "3s"}}).begin()
    run.scancel("--batch", "--signal=TERM")
    verdict = run.finish(patience_s=30.0)
    assert verdict["trainer"]["code"] == verdict["exit_code"] == 137
    run.assert_told_once("SIGTERM")
    assert [event["subject"] for event in run.events("Killed")] == ["trainer"]


def test_a_wrapper_that_goes_on_after_its_step_is_told_when_the_tasks_are_gone(cluster: Cluster) -> None:
    command = "bash -c 'srun -w {train.nodelist} -N2 -n2 STEP; sleep 300; exit 7'"
    run = EndingRun(cluster, command=command).begin()
    run.scancel("--batch", "--signal=TERM")
    verdict = run.finish(patience_s=30.0)
    assert verdict["trainer"]["signal"] == 15
    assert verdict["exit_code"] == 143
    run.assert_told_once("SIGTERM")
    assert len(run.lines("trainer", "saved")) == 2


def test_a_trainer_without_a_step_is_told_itself(cluster: Cluster) -> None:
    run = EndingRun(cluster, command="STEP").begin(trainers=1)
    run.scancel("--batch", "--signal=TERM")
    verdict = run.finish()
    assert verdict["exit_code"] == 0
    assert [line.what for line in run.lines("trainer")] == ["start", "told SIGTERM", "saved"]
    run.lines("pool", "told")


@pytest.mark.parametrize("is_killed_again", [False, True])
def test_a_controller_killed_while_it_waits_for_the_tasks_goes_on_waiting(
    cluster: Cluster, is_killed_again: bool
) -> None:
    run = EndingRun(cluster, save_s=6.0).begin()
    run.scancel("--batch", "--signal=TERM")
    run.slurm.wait("the trainer to be told", lambda: len(run.lines("trainer", "told")) == 2)
    for starts in (2, 3) if is_killed_again else (2,):
        run.slurm.kill(cluster.job(run.slurm.job)["BatchHost"], run.slurm.status()["controller_pid"])
        run.slurm.wait("the next one", lambda starts=starts: run.slurm.status().get("controller_starts") == starts)
    verdict = run.finish()
    assert verdict["exit_code"] == 0
    assert verdict["ended_by"] == "signal"
    run.assert_told_once("SIGTERM")
    run.assert_stopped_in_order()
