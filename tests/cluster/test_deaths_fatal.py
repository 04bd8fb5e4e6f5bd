"""SIGKILL to what a run on several nodes does not outlive: it ends with the right words and leaves nothing.

All runs stand side by side on the same nodes, each in a job of its own, and all are hurt before any is waited for.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.cluster import Cluster
from support.cluster_clean import assert_nothing_left
from support.slurm_run import SMALL, SlurmRun, server_service

SERVICES = {"web": server_service(per_node="all"), "pool": server_service(replicas=2, place={"on": "env"})}
STEP = f"srun -N1 -n1 -w {{train.nodelist}} --overlap {sys.executable} -c 'import time; time.sleep(300)'"


def batch_host(run: SlurmRun) -> str:
    return run.cluster.job(run.job)["BatchHost"]


def kill_srun(run: SlurmRun) -> None:
    run.kill(batch_host(run), run.find_srun()[0])


def cancel_step(run: SlurmRun) -> None:
    run.cluster.call("scancel", f"{run.job}.0")


def kill_outer(run: SlurmRun) -> None:
    run.kill(batch_host(run), run.node(batch_host(run))["outer_pid"])


def kill_keeper(run: SlurmRun) -> None:
    run.kill(batch_host(run), run.node(batch_host(run))["keeper_host_pid"])


def kill_stub(run: SlurmRun) -> None:
    run.kill(batch_host(run), run.find_role(batch_host(run), "stub")[0])


def kill_trainer_srun(run: SlurmRun) -> None:
    run.kill(batch_host(run), run.status()["trainer"]["pid"])


NODE_LOST = {"ended_by": "node_lost", "exit_code": 5}


@dataclass
class Case:
    hurt: Callable[[SlurmRun], None]
    says: dict[str, Any] = field(default_factory=lambda: dict(NODE_LOST))
    clean: str = "true"
    has_step: bool = False
    """The trainer is a step of its own."""


CASES = {
    "srun": Case(kill_srun),
    "step": Case(cancel_step),
    "outer": Case(kill_outer),
    "keeper": Case(kill_keeper),
    # The batch script is gone with it, so that Slurm takes no step any more that could ask the other node.
    "stub": Case(kill_stub, {"ended_by": "stub_lost"}, clean="unknown"),
    "trainer": Case(kill_trainer_srun, {"ended_by": "trainer", "exit_code": 137}, has_step=True),
}


@dataclass
class Over:
    run: SlurmRun
    verdict: dict[str, Any]


@pytest.fixture(scope="module")
def ends(module_cluster: Cluster) -> dict[str, Over]:
    """Every case's run, over."""
    groups = {"train": {"count": 1}, "env": {"count": "rest"}}
    runs = {
        name: SlurmRun(module_cluster, name, nodes=groups, trainer={"on": "train"}, services=SERVICES) for name in CASES
    }
    for name, run in runs.items():
        run.trainer = STEP if CASES[name].has_step else run.trainer
        run.submit("-N2", "--no-kill", *SMALL)
    for run in runs.values():
        run.wait_running()
    for name, run in runs.items():
        CASES[name].hurt(run)
    return {name: Over(run, run.wait_over()) for name, run in runs.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_death_that_ends_the_run_is_told_and_leaves_nothing(ends: dict[str, Over], name: str) -> None:
    case, over = CASES[name], ends[name]
    assert over.verdict.items() >= case.says.items(), over.verdict
    assert over.verdict["clean"] == case.clean, over.verdict["nodes"]
    assert len(over.verdict["nodes"]) == 2
    assert_nothing_left(over.run.cluster, over.run.run_dir)
