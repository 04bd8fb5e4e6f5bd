"""The lock of the shared store: one owner, a dead one is replaced, a live one never."""

import os
import threading
from pathlib import Path

import pytest

from retinue.sandbox import store_lock
from retinue.sandbox.store_lock import Packer, StoreLock
from retinue.terms.record import from_json, replace, to_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "digest.lock"


def write_owner(path: Path, **changes: object) -> Packer:
    """A lock file of somebody else."""
    StoreLock(path).try_take()
    owner = replace(from_json(path.read_bytes(), Packer), nonce="dead", **changes)
    path.write_bytes(to_json(owner))
    return owner


def test_one_of_many_gets_it_and_the_next_after_its_release(path: Path) -> None:
    locks = [StoreLock(path) for _ in range(8)]
    taken: list[StoreLock] = []
    barrier = threading.Barrier(8)

    def take(lock: StoreLock) -> None:
        barrier.wait(20)
        if lock.try_take() is not None:
            taken.append(lock)

    threads = [threading.Thread(target=take, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    [owner] = taken
    [other, *_] = [lock for lock in locks if lock is not owner]
    other.release()  # Not its own: nothing happens.
    assert other.try_take() is None
    assert str(os.getpid()) in other.holder
    owner.refresh()
    owner.release()
    assert os.listdir(path.parent) == []
    assert other.try_take() == ""


def test_an_owner_whose_process_is_gone_is_replaced_at_once_by_one_of_many(path: Path) -> None:
    write_owner(path, pid=2**22 + 1)
    answers = [StoreLock(path).try_take() for _ in range(4)]
    assert answers == ["dead", None, None, None]
    assert os.listdir(path.parent) == [path.name]


def test_a_pid_that_was_used_again_is_not_the_owner(path: Path) -> None:
    write_owner(path, pid_start=1)
    assert StoreLock(path).try_take() == "dead"


@pytest.mark.parametrize("where", [{"host": "elsewhere"}, {"where": "another boot"}])
def test_an_owner_that_cannot_be_seen_is_dead_after_a_minute_without_a_sign(
    path: Path, where: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_owner(path, pid=2**22 + 1, **where)
    now_s = 1000.0
    monkeypatch.setattr(store_lock.time, "monotonic", lambda: now_s)
    lock = StoreLock(path)
    assert lock.try_take() is None
    now_s += 59
    assert lock.try_take() is None
    os.utime(path, ns=(1, 1))  # A sign of life, whatever its clock says.
    now_s += 59
    assert lock.try_take() is None
    now_s += 59
    assert lock.try_take() is None
    now_s += 2
    assert lock.try_take() == "dead"
    assert StoreLock(path).try_take() is None


def test_a_lock_that_was_taken_over_meanwhile_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_owner(path, pid=2**22 + 1)
    slow, quick = StoreLock(path), StoreLock(path)
    rename = os.rename

    def be_overtaken(source: Path, target: Path) -> None:
        monkeypatch.setattr(store_lock.os, "rename", rename)
        assert quick.try_take() == "dead"
        rename(source, target)

    monkeypatch.setattr(store_lock.os, "rename", be_overtaken)
    assert slow.try_take() is None
    assert from_json(path.read_bytes(), Packer).nonce == quick.nonce
    assert os.listdir(path.parent) == [path.name]


def test_a_file_system_without_hard_links_has_a_lock_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(store_lock.os, "link", refuse)
    one, two = StoreLock(path), StoreLock(path)
    assert (one.try_take(), two.try_take()) == ("", None)
    one.release()
    assert two.try_take() == ""


def test_what_is_no_record_of_ours_is_an_owner_that_nobody_sees(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"\0 not json")
    lock = StoreLock(path)
    assert lock.try_take() is None
    monkeypatch.setattr(store_lock, "STALE_S", -1.0)
    assert lock.try_take() == "?"
