"""Whether a run lives, as another host sees it: by the stamps of files, whatever the clocks and pids there say."""

import json
import os
import time
from pathlib import Path

import pytest

from retinue.journal.life import (
    DEAD,
    AgeWatch,
    LifeWatch,
    find_death,
    measure_age_s,
    read_file_clock_s,
)
from retinue.journal.lock import take_lock

LIMIT_S = 60.0


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose lock is held by this process, as this host sees it."""
    take_lock(tmp_path / "lock", "r1", 0)
    return tmp_path


def move_elsewhere(run_dir: Path, silent_s: float = 0.0) -> Path:
    """Make the owner one of another host, which refreshed its lock so long ago."""
    lock = run_dir / "lock"
    owner = json.loads(lock.read_text()) | {"host": "node001", "where": "another boot"}
    lock.write_text(json.dumps(owner))
    grow_old(lock, silent_s)
    return lock


def grow_old(path: Path, age_s: float) -> None:
    then_ns = path.stat().st_mtime_ns - int(age_s * 1e9)
    os.utime(path, ns=(then_ns, then_ns))


def test_the_file_clock_goes_with_the_files_and_leaves_none(tmp_path: Path) -> None:
    before = read_file_clock_s(tmp_path)
    (tmp_path / "x").touch()
    after = read_file_clock_s(tmp_path)
    assert before is not None
    assert after is not None
    assert before <= (tmp_path / "x").stat().st_mtime_ns / 1e9 + 0.05 <= after + 0.1
    assert os.listdir(tmp_path) == ["x"]
    assert read_file_clock_s(tmp_path / "none") is None


@pytest.mark.parametrize("skew_s", [-7200.0, 7200.0])
def test_a_clock_that_is_hours_off_makes_no_file_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    path = tmp_path / "status.json"
    path.touch()
    grow_old(path, 30)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew_s)
    assert 29.5 < measure_age_s(path) < 35


def test_a_file_that_changes_under_our_eyes_is_young_whatever_its_stamp(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "status.json"
    path.touch()
    grow_old(path, 500)
    watch = AgeWatch(path, clock)
    assert 499 < watch.measure_s() < 505
    grow_old(path, -100)
    clock.now_s += 7
    assert watch.measure_s() == 0
    clock.now_s += 3
    assert watch.measure_s() == 3


def test_an_owner_on_this_host_is_asked_for_and_its_stamp_means_nothing(run_dir: Path) -> None:
    grow_old(run_dir / "lock", 3600)
    assert find_death(run_dir) == ""
    lock = run_dir / "lock"
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"pid_start": 1}))
    assert find_death(run_dir) == DEAD


def test_a_pid_of_another_host_is_never_asked_for(run_dir: Path) -> None:
    lock = move_elsewhere(run_dir)
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"pid": 4194303, "pid_start": 1}))
    assert find_death(run_dir) == ""


def test_an_owner_elsewhere_is_dead_when_its_lock_was_not_refreshed_for_a_minute(run_dir: Path) -> None:
    move_elsewhere(run_dir, LIMIT_S - 10)
    assert find_death(run_dir) == ""
    grow_old(run_dir / "lock", 20)
    said = find_death(run_dir)
    assert "node001" in said
    assert "70 s" in said
    assert [path.name for path in run_dir.iterdir()] == ["lock"]


def test_where_nothing_can_be_written_silence_counts_from_the_first_look(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, clock = move_elsewhere(run_dir, 3600), Clock()
    monkeypatch.setattr("retinue.journal.life.read_file_clock_s", lambda directory: None)
    watch = LifeWatch(run_dir, clock)
    assert watch.find_death() == ""
    clock.now_s += LIMIT_S - 1
    assert watch.find_death() == ""
    grow_old(lock, -1)
    clock.now_s += 2
    assert watch.find_death() == ""
    clock.now_s += LIMIT_S
    assert "has not refreshed its lock" in watch.find_death()


def test_a_run_that_comes_back_is_alive_again(run_dir: Path) -> None:
    lock, clock = move_elsewhere(run_dir, 100), Clock()
    watch = LifeWatch(run_dir, clock)
    assert watch.find_death() != ""
    grow_old(lock, -100)
    assert watch.find_death() != "", "looks are rare"
    clock.now_s += 2
    assert watch.find_death() == ""


def test_without_a_lock_there_is_no_run_and_without_an_answer_nobody_knows(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(116, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr("retinue.journal.life.look", refuse)
        assert find_death(run_dir) == ""
    (run_dir / "lock").unlink()
    assert find_death(run_dir) == DEAD
    assert find_death(run_dir / "none") == ""
