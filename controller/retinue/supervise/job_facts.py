"""What only Slurm knows of the job: when it ends, and how long it lets a signalled job live. Asked once, at the start.
Also what follows from that, and from the step that the command was given in.

An answer that does not come costs our own deadline, never the run.
"""

from collections.abc import Mapping

from retinue.allocation.records import Allocation
from retinue.plan.records import Plan
from retinue.slurm.answers import KillTimes, Unknown
from retinue.slurm.inside_step import OVERLAP, describe_step
from retinue.slurm.query import SlurmDesk
from retinue.supervise.time_left import warn_of_time_left
from retinue.terms.record import Record, replace


class JobFacts(Record, frozen=True):
    """The answers."""

    allocation: Allocation
    """With `end_utc` as Slurm has it."""
    kill_wait_s: float | None = None
    """None: not in Slurm, or it did not say."""
    grace_s: float = 0.0
    """GraceTime of the job's partition."""
    warnings: tuple[str, ...] = ()
    step_words: str = ""
    """Inside a step: what that means for a trainer that starts one."""

    def add_to(self, plan: Plan, now_utc: float) -> Plan:
        """Write down in the plan what was learnt, and what follows from it."""
        has_overlap = any(OVERLAP in word for word in plan.trainer.argv)
        of_step = (self.step_words,) if self.step_words and plan.trainer.argv and not has_overlap else ()
        plan = replace(plan, warnings=(*plan.warnings, *self.warnings, *of_step))
        if self.kill_wait_s is not None:
            plan = replace(plan, kill_wait_s=self.kill_wait_s, preempt_grace_s=self.grace_s)
        return warn_of_time_left(plan, now_utc)


def read_job_facts(allocation: Allocation, env: Mapping[str, str], desk: SlurmDesk | None = None) -> JobFacts:
    """Ask for what the environment does not tell; outside a job nobody is asked.

    Source: SLURM_JOB_END_TIME, sbatch(1); Slurm 22.05 does not set it. A job without a time limit has no end.
    """
    if allocation.job_id is None:
        return JobFacts(allocation)
    said: list[str] = []
    step_words = describe_step(env)
    desk = desk or SlurmDesk(env, said.append)
    if "SLURM_JOB_END_TIME" not in env:
        end = desk.read_end_utc(allocation.job_id)
        if isinstance(end, Unknown):
            said.append(f"the run does not know when its job ends, and stops when Slurm signals it: {end.why}")
        else:
            allocation = replace(allocation, end_utc=end)
    times = desk.read_kill_wait(env.get("SLURM_JOB_PARTITION", ""))
    if isinstance(times, KillTimes):
        return JobFacts(allocation, times.kill_wait_s, times.grace_s, tuple(said), step_words)
    said.append(f"Slurm did not say its KillWait, 30 s are assumed: {times.why}")
    return JobFacts(allocation, warnings=tuple(said), step_words=step_words)
