"""Slurm signals every process at once, and kills soon after: all is over before that, and no failure of ours."""

import pytest

from support.cluster import Cluster
from support.ending_run import EndingRun


def test_a_plain_scancel_restarts_nothing_and_is_over_before_slurm_kills(cluster: Cluster) -> None:
    run = EndingRun(cluster).begin()
    run.scancel()
    verdict = run.finish()
    assert verdict["ended_by"] == "signal"
    assert "every process of the job" in verdict["cause"]
    assert cluster.job(run.slurm.job)["JobState"] == "CANCELLED"
    run.assert_nothing_restarted(verdict)
    stop = run.events("StopBegun")[0]
    assert "SIGTERM" in stop["reason"]
    assert verdict["ended_utc"] - stop["t_utc"] < 5.0, "KillWait is 5 s in this cluster"


def test_a_cancelled_step_of_ours_is_the_loss_of_all_nodes_and_leaves_nothing_there(cluster: Cluster) -> None:
    run = EndingRun(cluster, on_exhausted="degrade").begin()
    run.scancel(step=".0")
    verdict = run.finish()
    assert verdict["ended_by"] == "node_lost"
    assert verdict["exit_code"] == 5


def test_a_term_to_our_step_alone_ends_the_run_in_order_of_what_is_left(cluster: Cluster) -> None:
    run = EndingRun(cluster).begin()
    run.scancel("--signal=TERM", step=".0")
    verdict = run.finish()
    assert verdict["ended_by"] == "signal"
    assert "every node" in verdict["cause"]
    run.assert_nothing_restarted(verdict)


@pytest.mark.parametrize("partition", ["low", "low-cancel"])
def test_a_preemption_signals_the_steps_leaves_time_for_a_checkpoint_and_is_named(
    cluster: Cluster, partition: str
) -> None:
    # GraceTime and KillWait are 5 s each here: longer than what KillWait alone leaves, and shorter than both do.
    run = EndingRun(cluster, save_s=3.0).begin(f"--partition={partition}")
    high = cluster.sbatch("--partition=high", "-N4", "--exclusive", script="exit 0")
    verdict = run.slurm.wait_verdict()
    cluster.wait_job(high, "COMPLETED")
    run.scancel()
    run.finish()
    assert verdict["ended_by"] == "preempted"
    assert len(run.lines("trainer", "saved")) == 2, run.lines()
    run.assert_told_once("SIGTERM")
    assert verdict["exit_code"] == 0
    run.assert_nothing_restarted(verdict)
