"""Whether a job is long enough for its own end: `run.drain` is taken off the end of its time. Pure."""

from retinue.plan.records import Plan
from retinue.terms.record import replace

EARLY_S = 60.0
"""`sbatch --signal=B:USR2@N` may come so much earlier than N seconds before the end. Source: --signal in sbatch(1)."""


def check_time_limit(limit_s: float | None, drain_s: float) -> list[str]:
    """Warn of a time limit that leaves the trainer nothing; None: nobody knows it yet, or there is none."""
    return [] if limit_s is None else _check(f"the time limit is {limit_s:g} s", limit_s, drain_s)


def warn_of_time_left(plan: Plan, now_utc: float) -> Plan:
    """Write the same down in the plan of a job that has begun."""
    if plan.allocation.end_utc is None:
        return plan
    left_s = max(0.0, plan.allocation.end_utc - now_utc)
    return replace(plan, warnings=(*plan.warnings, *_check(f"the job ends in {left_s:.0f} s", left_s, plan.drain_s)))


def _check(said: str, time_s: float, drain_s: float) -> list[str]:
    left_s = time_s - drain_s
    if left_s > EARLY_S or drain_s <= 0:
        return []
    if left_s <= 0:
        what = "the run begins to stop as soon as it has begun, and the trainer gets no time"
    else:
        what = (
            f"services and trainer have {left_s:.0f} s together, or less: the warning that --signal asks Slurm for may "
            f"come {EARLY_S:g} s early"
        )
    return [
        f"{said}, and run.drain takes {drain_s:g} s off its end for an ordered stop, so {what}; ask for a longer "
        "--time, or set run.drain to what the stop takes"
    ]
