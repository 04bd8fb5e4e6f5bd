"""Jobs that were sent and have made no attempt yet: what their own directories say of them, without Slurm.

A job waits, is about to begin, or has failed before there was a run to tell of. Which of these it is shows in whether
Slurm has begun to write its output.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from retinue.journal.events import escape_controls
from retinue.journal.rundir import RUNS, replace_link, replace_text
from retinue.terms import run as files
from retinue.terms.record import DecodeError, Record, from_json, to_pretty_json

WORDS_BYTES = 4096
"""As far back in a job's output as its last line is looked for."""
WORDS_CHARS = 300


class SentJob(Record, frozen=True):
    """What `submit` leaves beside the script: `job.json`."""

    job_id: str
    submitted_utc: float
    output: str = ""
    """Where Slurm writes what the job prints; empty: its name has parts that only Slurm fills in."""


def note_sent(run_dir: Path, start_dir: Path, job: SentJob) -> None:
    """Write down that Slurm has taken the job, and make it the newest that was sent from here.

    Errors: none; the job is queued already, and what is lost is words.
    """
    runs = start_dir / RUNS
    with suppress(OSError):
        replace_text(run_dir / files.JOB, to_pretty_json(job).decode())
    with suppress(OSError):
        runs.mkdir(mode=0o700, exist_ok=True)
        replace_link(runs / files.SUBMITTED, run_dir.name if run_dir.parent == runs else str(run_dir))


def read_sent(run_dir: Path) -> SentJob | None:
    """Read which job was sent with a run directory; None: nobody wrote it down."""
    try:
        return from_json((run_dir / files.JOB).read_bytes(), SentJob)
    except (OSError, DecodeError):
        return None


def has_waiting(run_dir: Path) -> bool:
    """Say whether a job was sent with this directory and has made no attempt."""
    return (run_dir / files.SCRIPT).exists() and not (run_dir / files.CURRENT).is_dir()


def describe_waiting(run_dir: Path) -> str:
    """Say what is known of a job that has made no attempt yet, for `has_waiting`."""
    job = read_sent(run_dir)
    if job is None:
        return (
            f"{run_dir} is there, but no attempt has begun in it yet: squeue says whether its job waits; what it "
            "printed is in slurm-*.out there"
        )
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.submitted_utc))
    name = f"job {job.job_id}"
    if job.output and not os.path.exists(job.output):
        return (
            f"{name} is pending (submitted {when}), as far as {run_dir} tells: no attempt has begun and nothing was "
            f"printed; `squeue -j {job.job_id}` says what it waits for"
        )
    where = f"in {job.output}" if job.output else f"where --output says (`scontrol show job {job.job_id}`)"
    last = _read_last_line(job.output)
    return (
        f"{name} (submitted {when}) has made no attempt in {run_dir}: it ended before its first one, or is about to "
        f"begin; what it printed is {where}" + (f", last: {last}" if last else "")
    )


def describe_newer(cwd: Path) -> str:
    """Tell of the job that was sent last from here, where it is newer than the latest run; else empty.

    Shape: of a run that was submitted itself the scripts are compared, of another one its beginning.
    """
    runs = cwd / RUNS
    latest, sent = runs / files.LATEST, runs / files.SUBMITTED
    try:
        run_dir = sent.resolve()
        if not sent.is_symlink() or not has_waiting(run_dir):
            return ""
        script = latest / files.SCRIPT
        began = script.stat() if script.exists() else latest.lstat()
        if (run_dir / files.SCRIPT).stat().st_mtime_ns <= began.st_mtime_ns:
            return ""
    except OSError:
        return ""
    return describe_waiting(run_dir)


def _read_last_line(path: str) -> str:
    """The last line with anything in it, harmless to a terminal."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - WORDS_BYTES))
            lines = file.read(WORDS_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return escape_controls(next((line.strip() for line in reversed(lines) if line.strip()), "")[:WORDS_CHARS])
