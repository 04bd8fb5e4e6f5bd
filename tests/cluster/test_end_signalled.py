"""A signal reaches the batch process alone: the trainer's tasks are told first, then services in order."""

import pytest

from support.cluster import Cluster
from support.ending_run import EndingRun


@pytest.mark.parametrize(
    ("signal", "told", "ended_by"),
    [("TERM", "SIGTERM", "signal"), ("INT", "SIGINT", "signal"), ("USR2", "SIGTERM", "timeout")],
)
def test_a_signal_to_the_batch_process_reaches_the_tasks_once_and_not_their_srun(
    cluster: Cluster, signal: str, told: str, ended_by: str
) -> None:
    run = EndingRun(cluster).begin()
    run.scancel("--batch", f"--signal={signal}")
    verdict = run.finish()
    assert verdict["ended_by"] == ended_by
    assert verdict["trainer"]["code"] == verdict["exit_code"] == 0
    run.assert_told_once(told)
    run.assert_stopped_in_order()
    run.assert_nothing_restarted(verdict)


def test_a_signal_to_the_batch_script_and_its_children_does_not_reach_srun_before_us(cluster: Cluster) -> None:
    run = EndingRun(cluster).begin()
    run.scancel("--full", "--signal=TERM")
    verdict = run.finish()
    assert verdict["ended_by"] == "signal"
    assert verdict["exit_code"] == 0
    run.assert_told_once("SIGTERM")
    run.assert_stopped_in_order()


@pytest.mark.parametrize("signal", ["TERM", "INT"])
def test_a_second_signal_shortens_the_grace_of_tasks_that_take_their_time(cluster: Cluster, signal: str) -> None:
    run = EndingRun(cluster, save_s=60.0).begin()
    run.scancel("--batch", f"--signal={signal}")
    run.slurm.wait("the trainer to be told", lambda: len(run.lines("trainer", "told")) == 2)
    run.scancel("--batch", f"--signal={signal}")
    verdict = run.finish(patience_s=20.0)
    assert verdict["ended_by"] == "signal"
    assert verdict["exit_code"] == 137
    assert not run.lines("trainer", "saved")
    assert len(run.lines("web", "told")) == 4


def test_usr1_is_a_word_to_the_trainer_and_no_stop(cluster: Cluster) -> None:
    run = EndingRun(cluster).begin()
    run.scancel("--batch", "--signal=USR1")
    run.slurm.wait("the trainer to be warned by the stub", lambda: len(run.lines("trainer", "warned")) == 2)
    run.scancel("--signal=USR1")
    run.slurm.wait("the trainer to be warned by Slurm", lambda: len(run.lines("trainer", "warned")) == 4)
    run.let_trainer_end()
    verdict = run.finish()
    assert verdict["ended_by"] == "trainer"
    run.assert_nothing_restarted(verdict)
