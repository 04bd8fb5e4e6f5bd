"""One owner per run directory, whoever dies, stalls or races."""

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from retinue.errors import PermanentError
from retinue.journal import lock as lock_room
from retinue.journal.lock import Owner, RunLock, build_owner, find_owner, is_owner_alive, look, release_lock, take_lock
from retinue.terms.record import replace, to_json

ELSEWHERE = "another-host"


class Watch:
    """A clock that only `pause` moves; `each` runs at every pause, as life on the other host does."""

    def __init__(self, each: Callable[[float], None] = lambda now_s: None) -> None:
        self.now_s = 1000.0
        self.each = each

    def clock(self) -> float:
        return self.now_s

    def pause(self, wait_s: float) -> None:
        self.now_s += wait_s
        self.each(self.now_s)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@pytest.fixture
def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def living() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield child.pid
    child.kill()
    child.wait()
    assert child.stdin is not None
    child.stdin.close()


def put(path: Path, **changes: object) -> Owner:
    owner = replace(build_owner("other", 0, "", os.getpid()), **changes)
    path.write_bytes(to_json(owner))
    return owner


def take(path: Path, watch: Watch | None = None, run_id: str = "mine", attempt: int = 0, job: str = "") -> Owner:
    watch = watch or Watch()
    return take_lock(path, run_id, attempt, job, clock=watch.clock, pause=watch.pause)


def test_a_free_run_directory_is_taken_and_given_back(path: Path) -> None:
    owner = take(path)
    assert find_owner(path) == owner
    assert is_owner_alive(owner)
    assert path.stat().st_mode & 0o777 == 0o600
    release_lock(path, "other")
    assert find_owner(path) == owner
    release_lock(path, "mine")
    release_lock(path, "mine")
    assert os.listdir(path.parent) == []


def test_a_live_owner_on_this_host_is_refused_by_name_at_once(path: Path, living: int) -> None:
    put(path, pid=living, pid_start=lock_room.read_pid_start(living))
    watch = Watch()
    with pytest.raises(PermanentError, match=f"pid {living}"):
        take(path, watch)
    assert watch.now_s == 1000.0


def test_a_dead_owner_on_this_host_is_replaced_at_once(path: Path, dead_pid: int) -> None:
    put(path, pid=dead_pid, pid_start=7)
    watch = Watch()
    owner = take(path, watch)
    assert find_owner(path) == owner
    assert owner.run_id == "mine"
    assert watch.now_s == 1000.0
    assert os.listdir(path.parent) == ["lock"]


def test_a_pid_that_was_used_again_is_not_the_owner(path: Path, living: int) -> None:
    put(path, pid=living, pid_start=7)
    assert take(path).run_id == "mine"


def test_a_zombie_owner_is_dead(path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = put(path, pid=child.pid, pid_start=lock_room.read_pid_start(child.pid))
    assert is_owner_alive(owner)
    assert child.stdin is not None
    child.stdin.close()
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_owner_alive(owner) is False
        assert take(path).run_id == "mine"
    finally:
        child.wait()


@pytest.mark.parametrize("change", [{"host": ELSEWHERE}, {"where": "another boot"}])
def test_an_owner_that_cannot_be_seen_is_dead_only_after_60_s_without_change(
    path: Path, dead_pid: int, change: dict[str, str]
) -> None:
    owner = put(path, pid=dead_pid, pid_start=7, **change)
    assert is_owner_alive(owner) is None
    watch = Watch()
    assert take(path, watch).run_id == "mine"
    assert 1060.0 <= watch.now_s <= 1062.0


@pytest.mark.parametrize("clock_skew_s", [-1e9, 0.0, 1e9])
def test_an_owner_elsewhere_that_shows_life_is_refused_whatever_its_clock_says(path: Path, clock_skew_s: float) -> None:
    put(path, host=ELSEWHERE)

    def beat(now_s: float) -> None:
        if now_s % 10 == 0:
            os.utime(path, (0, 2e9 + now_s + clock_skew_s))

    os.utime(path, (0, 2e9 + clock_skew_s))
    watch = Watch(beat)
    with pytest.raises(PermanentError, match=ELSEWHERE):
        take(path, watch)
    assert watch.now_s <= 1011.0


def test_an_owner_that_lets_go_while_we_watch_is_followed(path: Path) -> None:
    put(path, host=ELSEWHERE)
    watch = Watch(lambda now_s: path.unlink(missing_ok=True) if now_s == 1005.0 else None)
    assert take(path, watch).run_id == "mine"
    assert watch.now_s == 1005.0


def test_a_higher_attempt_of_the_job_takes_over_from_a_live_one_which_finds_out(path: Path) -> None:
    take(path, run_id="first", attempt=0, job="77")
    lower = RunLock(path, "first")
    lower.refresh()
    assert lower.lost_to is None
    higher = take(path, run_id="second", attempt=1, job="77")
    lower.refresh()
    assert lower.lost_to == higher


@pytest.mark.parametrize("host", [ELSEWHERE, os.uname().nodename])
def test_a_lower_attempt_of_the_job_is_refused_at_once(path: Path, host: str) -> None:
    put(path, attempt=2, job="77", host=host)
    watch = Watch()
    with pytest.raises(PermanentError, match="attempt 2"):
        take(path, watch, attempt=1, job="77")
    assert watch.now_s == 1000.0


def test_a_higher_attempt_of_another_job_has_no_right_to_a_live_run(path: Path) -> None:
    owner = put(path, job="77")
    with pytest.raises(PermanentError):
        take(path, attempt=5, job="78")
    with pytest.raises(PermanentError):
        take(path, attempt=5)
    assert find_owner(path) == owner


def test_a_run_hands_its_lock_to_another_process_of_its_own(path: Path, living: int) -> None:
    take(path)
    owner = take_lock(path, "mine", 0, pid=living)
    assert owner.pid == living
    assert find_owner(path) == owner
    assert is_owner_alive(owner)


def test_refreshing_shows_life(path: Path) -> None:
    take(path)
    os.utime(path, (0, 0))
    RunLock(path, "mine").refresh()
    assert path.stat().st_mtime > 1e9


def test_a_taker_that_died_with_its_claim_does_not_block_the_next(path: Path, dead_pid: int) -> None:
    owner = put(path, pid=dead_pid, pid_start=7)
    claim = path.with_name(f"lock.claim-{owner.nonce}")
    put(claim, pid=dead_pid, pid_start=7, nonce="of a dead taker", run_id="third")
    assert take(path).run_id == "mine"
    assert os.listdir(path.parent) == ["lock"]


def test_a_taker_elsewhere_that_died_with_its_claim_is_waited_for(path: Path, dead_pid: int) -> None:
    owner = put(path, pid=dead_pid, pid_start=7)
    put(path.with_name(f"lock.claim-{owner.nonce}"), host=ELSEWHERE, nonce="n", run_id="third")
    watch = Watch()
    assert take(path, watch).run_id == "mine"
    assert watch.now_s >= 1060.0


def test_an_owner_that_woke_up_before_the_rename_keeps_its_run(path: Path) -> None:
    put(path, host=ELSEWHERE)
    seen = look(path)
    assert seen is not None
    os.utime(path, (0, 12345))
    assert lock_room._take_over(path, [seen], build_owner("mine", 0, "", os.getpid())) is False
    assert find_owner(path).run_id == "other"  # type: ignore[union-attr]
    assert os.listdir(path.parent) == ["lock"]


def test_a_lock_file_that_nobody_understands_is_taken_after_60_s(path: Path) -> None:
    path.write_bytes(b"{half a rec")
    watch = Watch()
    assert take(path, watch).run_id == "mine"
    assert watch.now_s >= 1060.0


def test_a_file_system_without_hard_links_is_locked_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    owner = take(path)
    assert find_owner(path) == owner
    with pytest.raises(PermanentError):
        take(path, run_id="another")
    assert os.listdir(path.parent) == ["lock"]


def _race(path: Path, start: Connection, result: Connection) -> None:
    start.recv()
    try:
        owner = take_lock(path, f"run of {os.getpid()}", 0)
        result.send(owner.nonce)
    except PermanentError:
        result.send(None)
    start.recv()


@pytest.mark.parametrize("has_dead_owner", [True, False])
def test_of_takers_that_come_at_once_exactly_one_gets_it(tmp_path: Path, dead_pid: int, has_dead_owner: bool) -> None:
    context = multiprocessing.get_context("spawn")
    starts, results, takers = [], [], []
    for _ in range(4):
        start, start_end = context.Pipe()
        result, result_end = context.Pipe()
        taker = context.Process(target=_race, args=(tmp_path / "lock", start_end, result_end))
        taker.start()
        starts.append(start)
        results.append(result)
        takers.append(taker)
    try:
        if has_dead_owner:
            put(tmp_path / "lock", pid=dead_pid, pid_start=7)
        for start in starts:
            start.send("go")
        assert all(result.poll(30) for result in results)
        winners = [nonce for nonce in (result.recv() for result in results) if nonce is not None]
        assert len(winners) == 1
        assert find_owner(tmp_path / "lock").nonce == winners[0]  # type: ignore[union-attr]
        assert os.listdir(tmp_path) == ["lock"]
    finally:
        for start, taker in zip(starts, takers, strict=True):
            start.send("end")
            taker.join(30)
            taker.close()


def test_many_threads_racing_for_a_dead_owner_are_one_winner_each_round(tmp_path: Path, dead_pid: int) -> None:
    tick = threading.Event()

    def race(number: int, path: Path) -> str | None:
        try:
            return take_lock(path, f"run {number}", 0, pause=lambda wait_s: tick.wait(wait_s / 1000) and None).nonce
        except PermanentError:
            return None

    with ThreadPoolExecutor(8) as pool:
        for turn in range(40):
            path = tmp_path / f"lock{turn}"
            put(path, pid=dead_pid, pid_start=7)
            winners = [nonce for nonce in pool.map(race, range(8), [path] * 8) if nonce]
            assert [find_owner(path).nonce] == winners  # type: ignore[union-attr]
