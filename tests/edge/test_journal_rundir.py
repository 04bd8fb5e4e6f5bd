"""A run directory is made whole and closed, or refused with the reason and what to do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.errors import EdgeError, PermanentError, TransientError
from retinue.journal import rundir as rundir_room
from retinue.journal.finding import find_attempt, find_run
from retinue.journal.lock import find_owner, take_lock
from retinue.journal.rundir import (
    TakenNameError,
    build_edge_error,
    create_run_dir,
    look_before,
    replace_link,
    take_back_run_dir,
)


def create(run_dir: Path, attempt: int = 0, run_id: str = "r1", start_dir: Path | None = None, job: str = "") -> Path:
    return create_run_dir(run_dir, run_id, attempt, {"manifest.yaml": "retinue: 1\n"}, start_dir, job)


def test_a_new_run_directory_is_complete_and_closed(tmp_path: Path) -> None:
    run_dir = tmp_path / "retinue-runs" / "x-1"
    attempt_dir = create(run_dir)
    assert attempt_dir == run_dir / "attempt-0"
    assert {path.name for path in run_dir.iterdir()} == {"attempt-0", "current", "lock", "manifest.yaml"}
    assert os.readlink(run_dir / "current") == "attempt-0"
    assert os.readlink(run_dir.parent / "latest") == "x-1"
    for path in (run_dir, attempt_dir, attempt_dir / "logs"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert find_owner(run_dir / "lock").run_id == "r1"  # type: ignore[union-attr]
    assert find_attempt(find_run(None, tmp_path)) == attempt_dir


def test_a_run_elsewhere_is_still_the_latest_where_it_was_started(tmp_path: Path) -> None:
    start_dir, scratch = tmp_path / "start", tmp_path / "scratch"
    start_dir.mkdir()
    scratch.mkdir()
    create(start_dir / "retinue-runs" / "x-1", start_dir=start_dir)
    create(scratch / "run", start_dir=start_dir)
    assert find_run(None, start_dir) == scratch / "run"
    assert os.listdir(scratch) == ["run"]


def test_a_requeued_job_gets_its_next_attempt_in_the_same_directory(tmp_path: Path) -> None:
    run_dir = tmp_path / "x-77"
    create(run_dir, 0, "r1", job="77")
    second = create(run_dir, 1, "r2", job="77")
    assert second == run_dir / "attempt-1"
    assert find_attempt(run_dir) == second
    assert (run_dir / "attempt-0").is_dir()
    with pytest.raises(PermanentError, match="attempt 1"):
        create(run_dir, 0, "r1", job="77")
    assert find_attempt(run_dir) == second


def test_an_older_attempt_of_that_number_is_kept(tmp_path: Path) -> None:
    for number in range(3):
        attempt_dir = create(tmp_path / "x", run_id="r1")
        assert os.listdir(attempt_dir) == ["logs"]
        (attempt_dir / "verdict.json").write_text(str(number))
    kept = sorted(path.name for path in (tmp_path / "x").glob("attempt-*"))
    assert kept == ["attempt-0", "attempt-0.old-1", "attempt-0.old-2"]
    assert (tmp_path / "x/attempt-0.old-1/verdict.json").read_text() == "0"


def test_a_directory_that_a_live_run_owns_is_left_as_it_is(tmp_path: Path) -> None:
    run_dir = tmp_path / "x"
    create(run_dir, run_id="r1")
    before = sorted(os.listdir(run_dir))
    with pytest.raises(PermanentError, match="alive"):
        create(run_dir, run_id="r2")
    assert sorted(os.listdir(run_dir)) == before
    assert find_owner(run_dir / "lock").run_id == "r1"  # type: ignore[union-attr]


def test_a_directory_with_other_files_is_refused_and_stays_open_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "manifest.yaml").touch()
    with pytest.raises(PermanentError, match="other files"):
        create(tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert os.listdir(tmp_path) == ["manifest.yaml"]


def test_an_empty_directory_of_ours_is_closed_and_used(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir(mode=0o755)
    create(tmp_path / "x")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", ["file", "file/below", "n" * 300])
def test_a_place_where_no_directory_can_be_is_refused_with_a_hint(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PermanentError, match="--run-dir"):
        create(tmp_path / place)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere: cannot here")
def test_a_place_that_is_not_writable_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(PermanentError, match="--run-dir"):
        create(tmp_path / "closed" / "x")


@pytest.mark.root
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    os.chown(tmp_path / "x", 12345, 12345)
    with pytest.raises(PermanentError, match="12345"):
        create(tmp_path / "x")


@pytest.mark.root
@pytest.mark.parametrize("size", ["size=4k", "size=64k,nr_inodes=3"])
def test_a_full_disk_is_transient_and_leaves_no_lock_behind(tmp_path: Path, size: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tiny", tmp_path], check=True)
    try:
        with pytest.raises(TransientError, match="free some space"):
            create_run_dir(tmp_path / "x", "r1", 0, {"manifest.yaml": "x" * 100_000})
        assert find_owner(tmp_path / "x" / "lock") is None
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_disk_that_fills_up_on_the_way_gives_the_lock_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(rundir_room, "replace_text", refuse)
    with pytest.raises(TransientError, match="quota"):
        create(tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_made_leaves_an_older_attempt_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = create(tmp_path / "x", run_id="r1")
    (first / "verdict.json").touch()

    def refuse(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir_room, "replace_text", refuse)
    with pytest.raises(TransientError):
        create(tmp_path / "x", run_id="r1")
    assert find_attempt(tmp_path / "x") == first
    assert sorted(os.listdir(first)) == ["logs", "verdict.json"]
    assert sorted(os.listdir(tmp_path / "x")) == ["attempt-0", "current", "manifest.yaml"]


@pytest.mark.parametrize("code", sorted(errno.errorcode))
def test_every_errno_becomes_an_edge_error_that_names_it(code: int) -> None:
    error = build_edge_error("make the run directory '/x'", OSError(code, os.strerror(code)))
    assert isinstance(error, EdgeError)
    assert str(error).startswith(f"cannot make the run directory '/x': {os.strerror(code)}")


def test_a_new_name_that_another_run_has_just_taken_is_left_to_it(tmp_path: Path) -> None:
    taken = tmp_path / "retinue-runs" / "x-1"
    taken.mkdir(parents=True)
    with pytest.raises(TakenNameError):
        create_run_dir(taken, "r2", 0, {}, is_new=True)
    assert os.listdir(taken) == []
    (taken / "lock").touch()
    with pytest.raises(TakenNameError):
        create_run_dir(taken, "r2", 0, {}, is_new=True)
    assert os.listdir(taken) == ["lock"]


def list_tree(root: Path) -> list[tuple[str, str]]:
    """Every name below, and where links point."""
    paths = sorted(root.rglob("*"))
    return [(str(path.relative_to(root)), os.readlink(path) if path.is_symlink() else "") for path in paths]


@pytest.mark.parametrize("first", [None, "retinue-runs/x-1", "retinue-runs/x-0", "elsewhere/x"])
@pytest.mark.parametrize("place", ["retinue-runs/x-1", "elsewhere/x", "elsewhere/deep/x"])
def test_a_run_directory_is_taken_back_to_what_was_there(tmp_path: Path, first: str | None, place: str) -> None:
    if first is not None:
        create(tmp_path / first, start_dir=tmp_path)
        (tmp_path / first / "attempt-0" / "verdict.json").write_text("the first")
        (tmp_path / first / "lock").unlink()
    before, tree = look_before(tmp_path / place, tmp_path), list_tree(tmp_path)
    create(tmp_path / place, run_id="r2", start_dir=tmp_path)
    assert list_tree(tmp_path) != tree
    take_back_run_dir(tmp_path / place, "r2", 0, before)
    assert list_tree(tmp_path) == tree
    if first is not None:
        assert (tmp_path / first / "attempt-0" / "verdict.json").read_text() == "the first"


def test_a_link_moves_in_one_step_and_a_real_directory_is_not_replaced(tmp_path: Path) -> None:
    replace_link(tmp_path / "latest", "a")
    replace_link(tmp_path / "latest", "b")
    assert os.readlink(tmp_path / "latest") == "b"
    (tmp_path / "real").mkdir()
    replace_link(tmp_path / "real", "b")
    assert (tmp_path / "real").is_dir()
    assert sorted(os.listdir(tmp_path)) == ["latest", "real"]


def test_the_lock_is_handed_to_a_process_that_lives_longer(tmp_path: Path) -> None:
    create(tmp_path / "x", run_id="r1")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        take_lock(tmp_path / "x" / "lock", "r1", 0, pid=child.pid)
        assert find_owner(tmp_path / "x" / "lock").pid == child.pid  # type: ignore[union-attr]
    finally:
        child.communicate(b"\n")
