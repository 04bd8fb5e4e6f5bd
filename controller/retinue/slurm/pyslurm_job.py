"""Ask pyslurm about one job, in a process of its own: `python -m retinue.slurm.pyslurm_job JOBID` prints JSON.

libslurm may block for as long as slurmctld is away, and ends the process it is in
when it meets a configuration it cannot read. Neither may happen to a controller.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from retinue.slurm.answers import NOT_KNOWN, JobState, Unknown
from retinue.slurm.commands import ask_slurm
from retinue.terms.record import DecodeError, from_json, to_json

NO_SUCH_JOB = "Invalid job id specified"
"""Slurm's own words for ESLURM_INVALID_JOB_ID, in its commands and in pyslurm's RPCError."""
PROBLEM = "problem"


def is_pyslurm_there() -> bool:
    """Whether it is installed; finding out does not import it."""
    return importlib.util.find_spec("pyslurm") is not None


def ask_pyslurm(job_id: str, env: Mapping[str, str]) -> JobState | Unknown:
    """Ask in a child process, as bounded as a command.

    Errors: none; an import, version or authentication error is Unknown with its reason.
    """
    said = ask_slurm([sys.executable, "-P", "-m", "retinue.slurm.pyslurm_job", job_id], env)
    if isinstance(said, Unknown):
        return Unknown(f"pyslurm: {said.why}")
    try:
        answer = json.loads(said)
        if isinstance(answer, dict) and PROBLEM in answer:
            return Unknown(f"pyslurm: {answer[PROBLEM]}")
        return from_json(said.encode(), JobState)
    except (ValueError, DecodeError):
        return Unknown(f"pyslurm: cannot read {said[:200]!r}")


def read_record(job: Mapping[str, Any]) -> JobState:
    """Turn `pyslurm.Job.load(id).to_dict()` into our record.

    Errors: KeyError or TypeError when it has another shape than that of 25.11.
    """
    reason = job["state_reason"] or ""
    end = job["end_time"]
    return JobState(
        state=str(job["state"]),
        reason="" if reason == "None" else str(reason),
        # Without a time limit there is no end; pyslurm says None, or a word.
        end_utc=float(end) if isinstance(end, int | float) and not isinstance(end, bool) and end > 0 else None,
        restarts=int(job["requeue_count"] or 0),
        is_requeueable=bool(job["is_requeueable"]),
        is_preempted=bool(job["preempt_time"]),
        batch_host=str(job["batch_host"] or ""),
        partition=str(job["partition"] or ""),
    )


def load_job(job_id: int) -> JobState:
    """Ask Slurm through the library.

    Errors: whatever the import of a compiled module raises, and RuntimeError in pyslurm's own words.
    """
    pyslurm: Any = importlib.import_module("pyslurm")
    # A library that changed its names is an error we can tell, not a crash.
    failed = getattr(pyslurm, "RPCError", None) or pyslurm.core.error.RPCError
    try:
        return read_record(pyslurm.Job.load(job_id).to_dict())
    except failed as error:
        if NO_SUCH_JOB in str(error):
            return JobState(NOT_KNOWN)
        raise RuntimeError(str(error)) from None


def main(argv: Sequence[str]) -> int:
    """Print the job, or what went wrong; both with exit code 0."""
    try:
        answer = to_json(load_job(int(argv[0])))
    except (ImportError, AttributeError, RuntimeError, OSError, KeyError, TypeError, ValueError) as error:
        answer = json.dumps({PROBLEM: f"{type(error).__name__}: {error}"}).encode()
    print(answer.decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
