"""What is asked of Slurm before a run begins, and what an answer that does not come costs."""

from collections.abc import Mapping
from typing import Any

import pytest

from retinue.allocation.records import Allocation, Node
from retinue.slurm.answers import KillTimes, Unknown
from retinue.supervise.job_facts import read_job_facts
from retinue.terms.record import replace
from support.world import build_test_plan, service

JOB = Allocation((Node("n1", 8, 1000),), source="slurm", job_id="7")


class Desk:
    """Answers as it was told, and remembers what it was asked."""

    def __init__(self, end: float | Unknown | None, times: KillTimes | Unknown) -> None:
        self.end, self.times = end, times
        self.asked: list[str] = []

    def read_end_utc(self, job_id: str) -> float | Unknown | None:
        self.asked.append(f"end of {job_id}")
        return self.end

    def read_kill_wait(self, partition: str = "") -> KillTimes | Unknown:
        self.asked.append(f"kill wait in {partition}")
        return self.times


def read(desk: Desk, allocation: Allocation = JOB, env: Mapping[str, str] | None = None) -> Any:
    return read_job_facts(allocation, env or {"SLURM_JOB_PARTITION": "batch"}, desk)  # type: ignore[arg-type]


def test_an_old_slurm_is_asked_for_the_end_that_it_does_not_put_in_the_environment() -> None:
    desk = Desk(5000.0, KillTimes(5.0, 300.0))
    facts = read(desk)
    assert facts.allocation.end_utc == 5000.0
    plan = facts.add_to(build_test_plan([service("judge")]), 0.0)
    assert (plan.kill_wait_s, plan.preempt_grace_s) == (5.0, 300.0)
    assert plan.warnings == ()
    assert desk.asked == ["end of 7", "kill wait in batch"]


def test_a_job_without_a_time_limit_has_no_deadline_and_no_warning() -> None:
    facts = read(Desk(None, KillTimes(30.0)))
    assert facts.allocation.end_utc is None
    assert facts.warnings == ()


def test_a_slurm_that_does_not_answer_costs_the_deadline_and_is_a_warning_in_the_plan() -> None:
    facts = read(Desk(Unknown("scontrol said nothing within 10 s"), Unknown("no answer")))
    assert facts.allocation.end_utc is None
    plan = facts.add_to(build_test_plan([service("judge")]), 0.0)
    assert (plan.kill_wait_s, plan.preempt_grace_s) == (30.0, 0.0)
    assert len(plan.warnings) == 2
    assert "said nothing" in plan.warnings[0]


@pytest.mark.parametrize("end", ["1000", "4294967294"])
def test_an_end_in_the_environment_is_not_asked_for(end: str) -> None:
    desk = Desk(1.0, KillTimes(5.0))
    read(desk, env={"SLURM_JOB_END_TIME": end})
    assert desk.asked == ["kill wait in "]


def test_a_job_that_is_as_short_as_its_drain_is_warned_of_at_its_start() -> None:
    facts = read(Desk(5000.0, KillTimes(5.0)))
    plan = replace(build_test_plan([service("judge")]), allocation=facts.allocation)
    (warning,) = facts.add_to(plan, 4900.0).warnings
    assert warning.startswith("the job ends in 100 s")


def test_outside_a_job_nobody_is_asked() -> None:
    desk = Desk(1.0, KillTimes(5.0))
    assert read(desk, Allocation((Node("here", 2, 1000),))).kill_wait_s is None
    assert desk.asked == []
