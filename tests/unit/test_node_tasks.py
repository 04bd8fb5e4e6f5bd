"""Which Slurm task belongs to the trainer, by its environment."""

import pytest

from retinue.node.tasks import is_trainer_task

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}


@pytest.mark.parametrize(
    ("env", "is_ours"),
    [
        (STEP, True),
        (STEP | {"RETINUE_RUN_ID": "abc"}, True),
        (STEP | {"RETINUE_RUN_ID": "another"}, False),
        (STEP | {"RETINUE_LAUNCH": "abc"}, False),
        (STEP | {"RETINUE_LAUNCH": "another"}, False),
        (STEP | {"SLURM_STEP_ID": "0"}, False),
        (STEP | {"SLURM_STEP_ID": "4294967290"}, False),
        (STEP | {"SLURM_JOB_ID": "8"}, False),
        ({"SLURM_JOB_ID": "7"}, False),
        ({}, False),
    ],
)
def test_only_a_step_of_the_job_that_is_nobody_elses_is_the_trainers(env: dict[str, str], is_ours: bool) -> None:
    assert is_trainer_task(env, "7", {"0", "4294967290"}, "abc") is is_ours
