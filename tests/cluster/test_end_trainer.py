"""The trainer ends by itself: the run ends with its exit code, services in order, nothing left on any node."""

import pytest

from support.cluster import Cluster
from support.ending_run import EndingRun


@pytest.mark.parametrize(("code", "exit_code"), [(0, 0), (3, 3), (-9, 137)], ids=["zero", "three", "killed"])
def test_a_trainer_that_ends_ends_the_run_with_its_code_and_leaves_nothing(
    cluster: Cluster, code: int, exit_code: int
) -> None:
    run = EndingRun(cluster, save_s=0.0, code=code).begin()
    run.let_trainer_end()
    verdict = run.finish()
    assert verdict["ended_by"] == "trainer"
    assert verdict["exit_code"] == exit_code
    assert cluster.job(run.slurm.job)["ExitCode"] == f"{exit_code}:0"
    run.assert_stopped_in_order()
    run.assert_nothing_restarted(verdict)


def test_a_step_of_the_trainer_that_is_cancelled_is_the_trainers_end(cluster: Cluster) -> None:
    run = EndingRun(cluster).begin()
    run.scancel(step=".1")
    verdict = run.finish()
    assert verdict["ended_by"] == "trainer"
    assert verdict["exit_code"] == 137
    assert len(run.lines("pool", "told")) == 2
    assert run.lines("pool", "told")[-1].at < run.lines("web", "told")[0].at
    run.assert_nothing_restarted(verdict)
