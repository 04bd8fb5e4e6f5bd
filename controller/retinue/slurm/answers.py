"""What Slurm's commands print, as values. Pure.

An answer that cannot be read is `Unknown`, never "gone": silence and confusion are not death.
"""

import calendar
import re
import time

from retinue.terms.record import Record

NOT_KNOWN = "NOT_KNOWN"
"""A state of ours: Slurm answered, and knows no such job. It forgets a job some minutes after its end (MinJobAge)."""
FINAL = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    }
)
"""States that a job never leaves, unless it is queued again. Source: JOB STATE CODES, squeue(1)."""

_TIMES = re.compile(r" StartTime=(?P<start>\S+) EndTime=(?P<end>\S+) Deadline=\S+ ")
_STATE = re.compile(r" JobState=(?P<state>[A-Z_]+)(?: Reason=(?P<reason>.*?) Dependency=)?")
_COUNTS = re.compile(r" Requeue=(?P<requeue>[01]) Restarts=(?P<restarts>[0-9]+) ")
_PREEMPTED = re.compile(r" PreemptTime=(?!None |Unknown )\S+ ")
_BATCH_HOST = re.compile(r" BatchHost=(?P<host>\S+)")
_PARTITION = re.compile(r" Partition=(?P<partition>\S+) ")
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*(?P<s>[0-9]+) sec", re.MULTILINE)
_GRACE = re.compile(r" GraceTime=(?P<s>[0-9]+)")
_CLOCK = re.compile(r"(?:(?P<d>[0-9]+)-)?(?P<h>[0-9]{2}):(?P<m>[0-9]{2}):(?P<s>[0-9]{2})")


class Unknown(Record, frozen=True):
    """Slurm did not say: silent, failing, or not to be understood. Nothing follows from it."""

    why: str


class JobState(Record, frozen=True):
    """One job as Slurm sees it."""

    state: str
    """Slurm's word, `RUNNING`, or NOT_KNOWN."""
    reason: str = ""
    """`TimeLimit`, `NodeDown`; empty for `None`."""
    end_utc: float | None = None
    """Epoch seconds; None: no time limit, or not started."""
    restarts: int = 0
    is_requeueable: bool = False
    is_preempted: bool = False
    """Another job is to have its nodes: it runs on for the partition's GraceTime at most."""
    batch_host: str = ""
    partition: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it is over for good; a job that Slurm does not know may just as well be one it forgot."""
        return self.state in FINAL


class KillTimes(Record, frozen=True):
    """How long Slurm lets a job live that it has signalled."""

    kill_wait_s: float
    """Between TERM and KILL, for scancel and the time limit."""
    grace_s: float = 0.0
    """Notice before preemption, by partition."""


def parse_job(text: str) -> JobState | Unknown:
    """Read `scontrol show job -o ID`, printed with TZ=UTC0 and Slurm's standard times.

    Shape: fields are found by their neighbours, because names and paths may hold spaces and `=`.
    """
    line = f" {text.strip()} "
    state, times = _STATE.search(line), _TIMES.search(line)
    if state is None or times is None or not text.startswith("JobId="):
        return Unknown(f"cannot read what scontrol printed: {text.strip()[:200]!r}")
    try:
        end_utc = parse_time(times["end"])
    except ValueError as error:
        return Unknown(f"cannot read the end of the job: {error}")
    counts, host, partition = _COUNTS.search(line), _BATCH_HOST.search(line), _PARTITION.search(line)
    reason = state["reason"] or ""
    return JobState(
        state=state["state"],
        reason="" if reason == "None" else reason,
        end_utc=end_utc,
        restarts=int(counts["restarts"]) if counts else 0,
        is_requeueable=counts is not None and counts["requeue"] == "1",
        is_preempted=_PREEMPTED.search(line) is not None,
        batch_host=host["host"] if host else "",
        partition=partition["partition"] if partition else "",
    )


def parse_time(text: str) -> float | None:
    """Read `2026-11-30T20:01:00` as UTC; None for `Unknown` and `NONE`.

    Errors: ValueError for anything else.
    """
    if text in ("Unknown", "NONE", "N/A"):
        return None
    return float(calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))


def parse_kill_times(config: str, partition: str = "") -> KillTimes | Unknown:
    """Read KillWait of `scontrol show config`, and GraceTime of `scontrol show partition -o`."""
    wait = _KILL_WAIT.search(config)
    if wait is None:
        return Unknown("scontrol show config names no KillWait")
    return KillTimes(float(wait["s"]), parse_grace_s(partition))


def parse_grace_s(partition: str) -> float:
    """Read GraceTime, `120` or `1-00:02:00`; 0 when it is not there."""
    line = f" {partition} "
    clock = re.search(r" GraceTime=" + _CLOCK.pattern, line)
    if clock is not None:
        hours = int(clock["d"] or 0) * 24 + int(clock["h"])
        return float(hours * 3600 + int(clock["m"]) * 60 + int(clock["s"]))
    grace = _GRACE.search(line)
    return float(grace["s"]) if grace else 0.0
