"""A run that is started inside a step of its job is told what that means for a trainer with an srun of its own."""

import pytest

from retinue.allocation.records import Allocation, Node
from retinue.plan.records import TrainerPlan
from retinue.slurm.answers import KillTimes
from retinue.slurm.inside_step import describe_step, read_step
from retinue.supervise.job_facts import JobFacts
from support.world import build_test_plan, service

BATCH, EXTERN, INTERACTIVE = "4294967291", "4294967292", "4294967290"


@pytest.mark.parametrize(
    ("step", "found"),
    [("0", "0"), ("17", "17"), (BATCH, ""), (EXTERN, ""), (INTERACTIVE, ""), ("batch", ""), ("", ""), ("-1", "")],
)
def test_only_a_step_of_srun_is_one_that_others_wait_for(step: str, found: str) -> None:
    env = {"SLURM_STEP_ID": step, "SLURM_STEP_NUM_TASKS": "1"}
    assert read_step(env) == found
    assert ("waits for ever" in describe_step(env)) is bool(found)


def test_what_to_type_is_said_and_that_several_tasks_are_several_runs() -> None:
    one = describe_step({"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "1"})
    assert "inside step 3" in one
    assert "`srun --overlap -N1 -n1 ...`" in one
    assert "times" not in one
    assert "2 times" in describe_step({"SLURM_STEP_ID": "3", "SLURM_STEP_NUM_TASKS": "2"})
    assert describe_step({}) == ""


@pytest.mark.parametrize(
    ("argv", "count"),
    [(("srun", "train"), 1), (("bash", "train.sh"), 1), (("srun", "--overlap", "x"), 0), ((), 0)],
)
def test_a_trainer_that_overlaps_and_a_run_without_one_wait_for_nothing(argv: tuple[str, ...], count: int) -> None:
    facts = JobFacts(
        Allocation((Node("n1", 8, 1000),)), step_words="inside step 0", grace_s=KillTimes(5.0, 7.0).grace_s
    )
    plan = facts.add_to(build_test_plan([service("judge")], trainer=TrainerPlan(group="all", argv=argv)), 0.0)
    assert plan.warnings == ("inside step 0",) * count
