"""A run is found by directory, name or job id, without Slurm; where there is none, the places looked at are named."""

import json
import os
from pathlib import Path

import pytest

from retinue.errors import UsageError
from retinue.journal.finding import find_run
from retinue.journal.rundir import create_run_dir


def create(run_dir: Path, start_dir: Path | None = None, job: str | None = None, attempt: int = 0) -> Path:
    plan = json.dumps({"allocation": {"job_id": job, "nodes": []}, "replicas": []})
    texts = {"manifest.yaml": "retinue: 1\n", f"attempt-{attempt}/plan.json": plan}
    return create_run_dir(run_dir, run_dir.name, attempt, texts, start_dir, job or "")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    runs = tmp_path / "retinue-runs"
    create(runs / "kolibri-77", tmp_path)
    create(runs / "kolibri-78", tmp_path)
    return runs


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        (None, "kolibri-78"),
        ("77", "kolibri-77"),
        ("kolibri-77", "kolibri-77"),
        ("retinue-runs/kolibri-77", "kolibri-77"),
        ("/kolibri-77", "kolibri-77"),
    ],
)
def test_a_run_is_found_by_path_by_name_and_by_job(runs: Path, argument: str | None, name: str) -> None:
    if argument and argument.startswith("/"):
        argument = f"{runs}{argument}"
    assert find_run(argument, runs.parent) == runs / name


def test_a_job_is_found_by_its_plan_though_its_name_says_nothing_of_it(runs: Path) -> None:
    create(runs / "submitted-yesterday", runs.parent, job="4711")
    assert find_run("4711", runs.parent) == runs / "submitted-yesterday"


def test_a_job_whose_run_directory_is_elsewhere_is_found_through_latest(runs: Path) -> None:
    scratch = runs.parent / "scratch" / "mine"
    create(scratch, runs.parent, job="4711")
    assert find_run("4711", runs.parent) == scratch


def test_of_two_names_that_end_alike_the_plan_decides(runs: Path) -> None:
    create(runs / "other-4711", runs.parent, job="4711")
    create(runs / "zebra-20250101-4711", runs.parent)
    assert find_run("4711", runs.parent) == runs / "other-4711"


def test_a_half_written_plan_of_another_run_hides_no_run(runs: Path) -> None:
    (runs / "kolibri-77" / "current" / "plan.json").write_text('{"allocation": {"job_')
    create(runs / "mine", runs.parent, job="4711")
    (runs / "stray file").touch()
    assert find_run("4711", runs.parent) == runs / "mine"


def test_the_job_of_a_requeued_run_is_that_of_its_newest_attempt(runs: Path) -> None:
    create(runs / "mine", runs.parent, job="4711")
    second = create(runs / "mine", runs.parent, job="4711", attempt=1)
    assert (find_run("4711", runs.parent) / "current").resolve() == second


def test_a_place_that_was_looked_at_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_run("/etc", tmp_path)
    assert str(caught.value).count("/etc") == 1


@pytest.mark.parametrize("argument", [None, "nosuch", ".", "..", "/", "", "*", "[x"])
def test_where_no_run_is_the_places_looked_at_are_named(tmp_path: Path, argument: str | None) -> None:
    with pytest.raises(UsageError, match="cannot find a run") as caught:
        find_run(argument, tmp_path)
    assert "no run was started in this directory" in str(caught.value)


def test_a_name_that_is_not_there_is_answered_with_the_newest_that_are(runs: Path) -> None:
    for index in range(9):
        create(runs / f"more-{index}", runs.parent)
        os.utime(runs / f"more-{index}", (2e9 + index, 2e9 + index))
    with pytest.raises(UsageError) as caught:
        find_run("4712", runs.parent)
    said = str(caught.value)
    assert str(runs / "4712") in said
    assert 'Slurm job "4712"' in said
    assert "there are more-8, more-7, more-6, more-5, more-4 and 6 more" in said


def test_a_run_whose_job_has_not_begun_is_named_as_such(runs: Path) -> None:
    (runs / "queued").mkdir()
    with pytest.raises(UsageError, match="queued is there, but no attempt has begun in it yet"):
        find_run("queued", runs.parent)
