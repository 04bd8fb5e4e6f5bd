"""The time is up: by our own clock, by Slurm's warning, or by its limit; whatever comes first ends the run."""

import time

from support.cluster import Cluster
from support.ending_run import EndingRun


def test_our_own_clock_ends_the_run_in_order_before_slurm_does(cluster: Cluster) -> None:
    run = EndingRun(cluster, run={"drain": "50s"}).begin("--time=1")
    verdict = run.finish()
    assert verdict["ended_by"] == "deadline"
    assert verdict["exit_code"] == 0
    assert cluster.job(run.slurm.job)["JobState"] == "COMPLETED"
    run.assert_told_once("SIGTERM")
    run.assert_stopped_in_order()
    run.assert_nothing_restarted(verdict)


def test_the_time_limit_itself_is_a_stop_of_everything_at_once(cluster: Cluster) -> None:
    run = EndingRun(cluster, run={"drain": "1s"}).begin("--time=10")
    soon = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 2))
    cluster.call("scontrol", "update", f"jobid={run.slurm.job}", f"EndTime={soon}")
    verdict = run.finish(patience_s=90.0)
    assert verdict["ended_by"] == "timeout"
    assert cluster.job(run.slurm.job)["JobState"] == "TIMEOUT"
    run.assert_nothing_restarted(verdict)


def test_the_warning_before_the_time_limit_ends_the_run_in_order(cluster: Cluster) -> None:
    run = EndingRun(cluster, run={"drain": "1s"}).begin("--time=2", "--signal=B:USR2@110")
    verdict = run.finish(patience_s=90.0)
    assert verdict["ended_by"] == "timeout"
    assert "USR2" in verdict["cause"]
    assert verdict["exit_code"] == 0
    run.assert_told_once("SIGTERM")
    run.assert_stopped_in_order()
