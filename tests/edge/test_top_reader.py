"""What `top` reads, round by round: late, half written, gone, and a log that changes its file."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.cli.top_reader import LOGS_AT_ONCE, Reader, read_log, read_within
from retinue.cli.top_sight import Sight
from retinue.errors import TransientError, UsageError
from retinue.journal.verdict import Verdict
from retinue.terms.record import replace, to_json, to_pretty_json
from support.real_run import wait_for
from support.top_scenes import EVENTS, NOW, TROUBLED, build_replica, build_status, write_run

VERDICT = Verdict("0123456789ab", "kolibri-rl", 0, "operator", "retinue down", 0, NOW - 900, NOW, "true")


@pytest.fixture
def attempt_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", logs={"judge/1": "one\ntwo\n"})


@pytest.fixture
def reader(attempt_dir: Path) -> Reader:
    return Reader(attempt_dir.parent, lambda: None)


def test_a_round_sees_status_events_and_no_end(reader: Reader) -> None:
    sight = reader.read_once()
    assert (sight.status, sight.events) == (TROUBLED, EVENTS)
    assert (sight.verdict, sight.death, sight.trouble) == (None, "", "")
    assert sight.age_s < 30


def test_later_rounds_add_what_is_new_and_keep_what_was(reader: Reader, attempt_dir: Path) -> None:
    reader.read_once()
    late = replace(EVENTS[0], seq=100)
    with open(attempt_dir / "events.jsonl", "ab") as file:
        file.write(to_json(EVENTS[-1]) + b"\n" + to_json(late)[:30])
        file.flush()
        assert reader.read_once().events == EVENTS
        file.write(to_json(late)[30:] + b"\n")
    assert reader.read_once().events == (*EVENTS, late)


@pytest.mark.parametrize("content", [b"", b'{"run_id": "01', b"\xff\xfe", b"null", b"[]"])
def test_a_broken_snapshot_keeps_the_last_whole_one(reader: Reader, attempt_dir: Path, content: bytes) -> None:
    assert Reader(attempt_dir.parent, lambda: None).read_once().status == TROUBLED
    reader.read_once()
    (attempt_dir / "status.json").write_bytes(content)
    assert reader.read_once().status == TROUBLED
    assert Reader(attempt_dir.parent, lambda: None).read_once().status is None
    (attempt_dir / "status.json").unlink()
    assert reader.read_once().status == TROUBLED


def test_a_run_that_ends_shows_its_verdict_and_is_not_called_dead(reader: Reader, attempt_dir: Path) -> None:
    reader.read_once()
    (attempt_dir / "verdict.json").write_bytes(to_pretty_json(VERDICT))
    (attempt_dir.parent / "lock").unlink()
    sight = Reader(attempt_dir.parent, lambda: None).read_once()
    assert (sight.verdict, sight.death) == (VERDICT, "")


def test_a_run_without_lock_and_verdict_is_dead(attempt_dir: Path, reader: Reader) -> None:
    (attempt_dir.parent / "lock").unlink()
    assert "the run is dead" in reader.read_once().death


def test_what_cannot_be_read_is_said_beside_what_was_seen_and_forgotten_when_it_can(
    reader: Reader, attempt_dir: Path
) -> None:
    seen = reader.read_once()
    reader.sight = seen
    (attempt_dir / "events.jsonl").unlink()
    (attempt_dir / "events.jsonl").mkdir()
    sight = reader.read_once()
    assert "events.jsonl: Is a directory" in sight.trouble
    assert replace(sight, trouble="") == seen
    (attempt_dir / "events.jsonl").rmdir()
    assert reader.read_once().trouble == ""


def test_the_log_follows_a_replica_into_its_next_launch(reader: Reader, attempt_dir: Path) -> None:
    def read_lines() -> tuple[str, ...]:
        log = reader.read_once().log
        assert log is not None
        return log.lines

    reader.focus("judge/1")
    directory = attempt_dir / "logs" / "judge.1"
    assert read_lines() == ("one", "two")
    with open(directory / "launch-1.log", "a") as file:
        file.write("three\n")
    assert read_lines() == ("one", "two", "three")
    (directory / "launch-2.log").write_text("again\n")
    assert read_lines() == ("again",)
    reader.focus("")
    assert reader.read_once().log is None


def test_a_service_shows_a_few_of_its_replicas_those_first_that_are_not_well(tmp_path: Path) -> None:
    keys = [f"judge/{index}" for index in range(LOGS_AT_ONCE + 4)]
    status = build_status([([build_replica(key, "failed" if key == keys[-1] else "ready") for key in keys], 0)], [])
    attempt_dir = write_run(tmp_path / "run", status, {key: f"of {key}\n" for key in keys})
    log = read_log(attempt_dir, "judge", status)
    assert log.lines[0] == f"{keys[-1]} | of {keys[-1]}"
    assert len(log.lines) == LOGS_AT_ONCE
    assert log.note == f"{LOGS_AT_ONCE} of {len(keys)} replicas"


def test_a_service_that_never_ran_has_no_lines_and_says_so(attempt_dir: Path) -> None:
    assert read_log(attempt_dir, "index", TROUBLED).lines == ()
    assert "nothing was launched" in read_log(attempt_dir, "index", TROUBLED).note
    assert "nothing was launched" in read_log(attempt_dir / "none", "judge", None).note


def test_a_flood_is_read_from_its_end_only(attempt_dir: Path) -> None:
    path = attempt_dir / "logs" / "judge.1" / "launch-1.log"
    with open(path, "w") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write("\nthe end\n")
    assert read_log(attempt_dir, "judge/1", TROUBLED).lines[-1] == "the end"


@pytest.fixture
def hanging(attempt_dir: Path) -> Iterator[Path]:
    """A status file whose opening hangs until somebody writes."""
    path = attempt_dir / "status.json"
    path.unlink()
    os.mkfifo(path)
    yield path
    # Whoever still hangs gets an end of file.
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def test_reading_that_hangs_is_counted_and_goes_on_when_it_answers(attempt_dir: Path, hanging: Path) -> None:
    now_s, came = [100.0], threading.Event()

    def is_late() -> bool:
        now_s[0] += 1.0
        return reader.stalled_s >= 9.0

    reader = Reader(attempt_dir.parent, came.set, lambda: now_s[0])
    reader.start()
    wait_for("the round to be late", is_late)
    assert reader.sight == Sight(str(attempt_dir.parent))
    answered = os.open(hanging, os.O_RDWR | os.O_NONBLOCK)
    hanging.with_name("beside").write_bytes(to_pretty_json(TROUBLED))
    os.replace(hanging.with_name("beside"), hanging)
    os.close(answered)
    wait_for("a round to end", lambda: came.wait(0.1) and reader.sight.status == TROUBLED)


def test_the_first_look_is_given_up_in_time_and_its_errors_are_told(attempt_dir: Path, hanging: Path) -> None:
    with pytest.raises(TransientError, match=r"has not answered for 0\.2 s"):
        read_within(0.2, hanging.read_bytes)
    with pytest.raises(UsageError):
        read_within(9.0, lambda: fail(UsageError("no such run")))
    with pytest.raises(OSError, match="Stale"):
        read_within(9.0, lambda: fail(OSError(116, "Stale file handle")))
    assert read_within(9.0, lambda: 7) == 7


def fail(error: Exception) -> None:
    raise error
