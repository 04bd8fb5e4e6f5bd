"""Which run a command is about: by directory, name or Slurm job id, from the directory where it was started.

Looks at names and plans on the shared file system only; never asks Slurm.
"""

import glob
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from retinue.errors import UsageError
from retinue.journal.rundir import RUNS
from retinue.journal.submitted import describe_waiting, has_waiting, read_sent
from retinue.terms import run as files
from retinue.terms.record import DecodeError, Record, from_json

SHOWN = 5
"""Runs that a refusal names."""


class PlannedAllocation(Record, frozen=True):
    job_id: str | None = None


class PlannedJob(Record, frozen=True):
    """What of a run's `plan.json` says which job it belongs to."""

    allocation: PlannedAllocation


def find_run(run: str | None, cwd: Path) -> Path:
    """Find the run directory that a command is about.

    Shape:  a path, a name under retinue-runs/, or a job id (of a name's end, else of a plan); None: the latest.
    Errors: UsageError says where it looked, and what is there; of a job that has made no attempt, what is known of it.
    """
    runs = cwd / RUNS
    for candidate in _list_candidates(run, cwd, runs):
        if (candidate / files.CURRENT).is_dir():
            return candidate.resolve()
    raise UsageError(_describe_search(run, cwd, runs))


def find_attempt(run_dir: Path) -> Path:
    """The newest attempt of a run."""
    return (run_dir / files.CURRENT).resolve()


def _list_candidates(run: str | None, cwd: Path, runs: Path) -> Iterator[Path]:
    """In order; what costs reading comes last."""
    if run is None:
        yield runs / files.LATEST
        return
    yield cwd / run
    yield runs / run
    if not _may_be_job(run):
        return
    named = sorted(runs.glob(f"*-{glob.escape(run)}"), reverse=True)
    # Of two names that end alike, the one whose plan says so.
    yield from (path for path in named if _read_job(path) == run)
    yield from named
    yield from (path for path in _list_runs(runs) if _read_job(path) == run)


def _may_be_job(run: str) -> bool:
    return "/" not in run and run not in ("", ".", "..")


def _list_runs(runs: Path) -> list[Path]:
    """Every run below, the newest first; `latest` may lead to one elsewhere."""
    with suppress(OSError):
        return sorted((path for path in runs.iterdir() if path.is_dir()), key=os.path.getmtime, reverse=True)
    return []


def _read_job(run_dir: Path) -> str | None:
    try:
        return from_json((run_dir / files.CURRENT / files.PLAN).read_bytes(), PlannedJob).allocation.job_id
    except (OSError, DecodeError):
        return None


def _find_waiting(run: str | None, cwd: Path, runs: Path) -> Path | None:
    """Find the directory of a job that was sent and has made no attempt; without a word, of the one sent last."""
    if run is None:
        places = [runs / files.SUBMITTED]
    else:
        places = [cwd / run, runs / run] if run not in ("", ".", "..") else []
        places += [path for path in _list_runs(runs) if _may_be_job(run) and _was_sent_as(path, run)]
    return next((place.resolve() for place in places if has_waiting(place)), None)


def _was_sent_as(run_dir: Path, job_id: str) -> bool:
    job = read_sent(run_dir)
    return job is not None and job.job_id == job_id


def _may_begin(place: Path, runs: Path) -> bool:
    """Say whether this is a run's directory without a run: its job waits, or failed before it began."""
    return place.is_dir() and (place.parent == runs or (place / files.SCRIPT).exists())


def _describe_search(run: str | None, cwd: Path, runs: Path) -> str:
    waiting = _find_waiting(run, cwd, runs)
    if waiting is not None:
        return describe_waiting(waiting)
    # An absolute path is the same from anywhere.
    places = [runs / files.LATEST] if run is None else list(dict.fromkeys((cwd / run, runs / run)))
    looked = ", ".join(map(str, places))
    if run is not None and _may_be_job(run):
        looked += f', nor one of Slurm job "{run}" in {runs}'
    begun = [place for place in places if run not in (None, ".", "..") and _may_begin(place, runs)]
    if begun:
        hint = "squeue says whether its job waits; what it printed is in slurm-*.out there"
        return f"cannot find a run at {looked}; {begun[0]} is there, but no attempt has begun in it yet: {hint}"
    known = [path.name for path in _list_runs(runs) if path.name not in (files.LATEST, files.SUBMITTED)]
    if known:
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        return f"cannot find a run at {looked}; there are {', '.join(known[:SHOWN])}{more}"
    hint = "no run was started in this directory, or it is gone; give the run directory as RUN"
    return f"cannot find a run at {looked}; {hint}"
