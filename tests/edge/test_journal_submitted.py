"""A job that was sent and has no run yet: what is said of it is in its own directory, and no older run hides it."""

import os
from pathlib import Path

import pytest

from retinue.errors import UsageError
from retinue.journal.finding import find_run
from retinue.journal.rundir import create_run_dir
from retinue.journal.submitted import SentJob, describe_newer, note_sent

PLAN = '{"allocation": {"job_id": "12"}}'


class Desk:
    """A directory from which jobs are sent, one second after the other."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.runs = cwd / "retinue-runs"
        self._now_s = 1_900_000_000

    def send(self, name: str, job_id: str = "4711", place: Path | None = None) -> Path:
        run_dir = (place or self.runs) / name
        run_dir.mkdir(parents=True)
        (run_dir / "submit.sbatch").write_text("#!/bin/bash\n")
        self._now_s += 1
        os.utime(run_dir / "submit.sbatch", (self._now_s, self._now_s))
        note_sent(run_dir, self.cwd, SentJob(job_id, self._now_s, f"{run_dir}/slurm-{job_id}.out"))
        return run_dir

    def begin(self, run_dir: Path) -> Path:
        create_run_dir(run_dir, run_dir.name, 0, {"attempt-0/plan.json": PLAN}, self.cwd, "12")
        self._now_s += 1
        latest = self.runs / "latest"
        os.utime(latest, (self._now_s, self._now_s), follow_symlinks=False)
        return run_dir


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def refuse(desk: Desk, run: str | None) -> str:
    with pytest.raises(UsageError) as caught:
        find_run(run, desk.cwd)
    return str(caught.value)


@pytest.mark.parametrize("word", [None, "4711", "mine", "retinue-runs/mine"])
def test_a_job_that_waits_is_called_pending_by_whatever_it_is_named(desk: Desk, word: str | None) -> None:
    desk.send("mine")
    said = refuse(desk, word)
    assert said.startswith("job 4711 is pending (submitted 2030-")
    assert str(desk.runs / "mine") in said
    assert "cannot find" not in said


@pytest.mark.parametrize("word", [None, "4711", "mine"])
def test_a_job_that_printed_and_made_no_attempt_is_said_to_have_failed_with_its_last_line(
    desk: Desk, word: str | None
) -> None:
    output = desk.send("mine") / "slurm-4711.out"
    output.write_bytes(b"x" * 9000 + b"\nretinue: cannot find the trainer \x1b[2J\n\n")
    said = refuse(desk, word)
    assert "job 4711 (submitted 2030-" in said
    assert "made no attempt" in said
    assert f"in {output}, last: retinue: cannot find the trainer \\x1b[2J" in said


def test_an_older_run_is_shown_with_a_word_about_the_newer_job_until_that_begins(desk: Desk) -> None:
    old = desk.begin(desk.send("old", "12"))
    assert describe_newer(desk.cwd) == ""
    new = desk.send("new")
    assert find_run(None, desk.cwd) == old
    assert describe_newer(desk.cwd).startswith("job 4711 is pending")
    (new / "slurm-4711.out").write_text("no space left on device\n")
    assert "last: no space left on device" in describe_newer(desk.cwd)
    desk.begin(new)
    assert describe_newer(desk.cwd) == ""
    assert find_run(None, desk.cwd) == new


def test_a_job_that_was_sent_before_the_latest_run_is_no_news(desk: Desk) -> None:
    desk.send("failed")
    desk.begin(desk.runs / "by-hand")
    assert describe_newer(desk.cwd) == ""


def test_of_two_jobs_that_were_sent_the_later_is_newer_though_the_first_has_just_begun(desk: Desk) -> None:
    first = desk.send("first", "12")
    desk.send("second")
    desk.begin(first)
    assert find_run(None, desk.cwd) == first
    assert describe_newer(desk.cwd).startswith("job 4711 is pending")


def test_a_run_directory_elsewhere_is_known_too(desk: Desk) -> None:
    desk.begin(desk.runs / "old")
    far = desk.send("far", place=desk.cwd / "scratch")
    assert str(far) in describe_newer(desk.cwd)
    assert str(far) in refuse(desk, "4711")


def test_an_output_that_only_slurm_can_name_is_not_guessed_at(desk: Desk) -> None:
    run_dir = desk.send("mine")
    note_sent(run_dir, desk.cwd, SentJob("4711", 1.9e9, ""))
    said = refuse(desk, "4711")
    assert "pending" not in said
    assert "scontrol show job 4711" in said


def test_a_link_to_a_directory_that_is_gone_and_a_broken_note_are_nothing(desk: Desk) -> None:
    run_dir = desk.send("mine")
    (run_dir / "job.json").write_text('{"job_id"')
    assert "no attempt has begun in it yet" in refuse(desk, "mine")
    (run_dir / "job.json").unlink()
    (run_dir / "submit.sbatch").unlink()
    run_dir.rmdir()
    assert describe_newer(desk.cwd) == ""
    assert refuse(desk, None).startswith("cannot find a run")


def test_the_link_to_what_was_sent_is_not_listed_as_a_run(desk: Desk) -> None:
    desk.begin(desk.send("mine", "12"))
    assert "there are mine" in refuse(desk, "nosuch")
    assert "submitted" not in refuse(desk, "nosuch")
