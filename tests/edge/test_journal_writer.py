"""Full, hung and vanishing file systems cost what is written, and never a caller."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retinue.journal import files
from retinue.journal import writer as writer_room
from retinue.journal.writer import Writer

DEADLINE_S = 20.0


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer()
    yield made
    made.stop(DEADLINE_S)
    made._thread.join(DEADLINE_S)
    assert not made._thread.is_alive()


@pytest.fixture
def quick_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_room, "RETRY_S", 0.01)
    monkeypatch.setattr(writer_room, "RETRY_MAX_S", 0.01)


class Disk:
    """os.write with a switch: `fail` with an errno, or `hang` until released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.only = ""
        self.room_bytes = 10**9
        self.released = threading.Event()
        self.released.set()
        self.reached = threading.Event()
        self._write = os.write
        monkeypatch.setattr(files.os, "write", self.write)

    def write(self, descriptor: int, content: bytes) -> int:
        if self.only in os.readlink(f"/proc/thread-self/fd/{descriptor}"):
            self.reached.set()
            assert self.released.wait(DEADLINE_S)
            if self.error is not None and self.room_bytes == 0:
                raise OSError(self.error, os.strerror(self.error))
            content = content[: self.room_bytes]
            self.room_bytes -= len(content)
        return self._write(descriptor, content)

    def fill(self, error: int = errno.ENOSPC, room_bytes: int = 0) -> None:
        self.error, self.room_bytes = error, room_bytes

    def empty(self) -> None:
        self.error, self.room_bytes = None, 10**9


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.empty()
    made.released.set()


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < end_s
        tick.wait(0.005)


def test_lines_of_many_files_are_written_in_order(writer: Writer, tmp_path: Path) -> None:
    for number in range(300):
        for name in range(100):
            writer.append(tmp_path / f"{name}.log", b"%d\n" % number)
    assert writer.flush(DEADLINE_S)
    whole = b"".join(b"%d\n" % number for number in range(300))
    assert all((tmp_path / f"{name}.log").read_bytes() == whole for name in range(100))
    assert (tmp_path / "0.log").stat().st_mode & 0o777 == 0o600
    assert len(writer._files._open) <= files.OPEN_LIMIT
    assert writer.stuck_s(time.monotonic()) == 0.0


def test_a_log_gets_its_directories_but_a_removed_run_stays_removed(writer: Writer, tmp_path: Path) -> None:
    (tmp_path / "attempt-0").mkdir()
    writer.append(tmp_path / "attempt-0/logs/judge.0/launch-1.log", b"x\n")
    writer.append(tmp_path / "gone/attempt-0/logs/judge.0/launch-1.log", b"x\n")
    assert writer.flush(DEADLINE_S)
    assert (tmp_path / "attempt-0/logs/judge.0/launch-1.log").read_bytes() == b"x\n"
    assert not (tmp_path / "gone").exists()
    assert writer.lost_lines == 1
    assert "No such file" in writer.last_error


def test_a_replaced_file_is_never_seen_half(writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    sizes = set()
    for number in range(200):
        writer.replace(path, b"%06d" % number * 20_000, mode=0o640)
        if path.exists():
            content = path.read_bytes()
            sizes.add(len(content))
            assert content == content[:6] * 20_000
    assert writer.flush(DEADLINE_S)
    assert path.read_bytes() == b"000199" * 20_000
    assert sizes <= {120_000}
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["status.json"]


def test_appending_after_a_replacement_goes_to_the_new_file(writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / "tail.log"
    writer.append(path, b"old\n")
    assert writer.flush(DEADLINE_S)
    writer.replace(path, b"head\n")
    writer.append(path, b"new\n")
    assert writer.flush(DEADLINE_S)
    assert path.read_bytes() == b"head\nnew\n"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_a_full_disk_loses_log_lines_and_keeps_decisions(
    writer: Writer, tmp_path: Path, disk: Disk, quick_retry: None, error: int
) -> None:
    disk.fill(error, room_bytes=7)
    writer.append(tmp_path / "events.jsonl", b"decision 1\n", is_vital=True)
    until(lambda: writer.last_error == os.strerror(error))
    writer.append(tmp_path / "x.log", b"a\nb\nc\n")
    writer.append(tmp_path / "events.jsonl", b"decision 2\n", is_vital=True)
    writer.replace(tmp_path / "status.json", b"{}")
    until(lambda: writer.lost_lines == 3)
    assert writer.stuck_s(time.monotonic()) > 0
    assert not writer.flush(0.05)
    disk.empty()
    assert writer.flush(DEADLINE_S)
    assert (tmp_path / "events.jsonl").read_bytes() == b"decision 1\ndecision 2\n"
    assert (tmp_path / "status.json").read_bytes() == b"{}"
    assert sorted(name for name in os.listdir(tmp_path) if name.startswith(".")) == []
    assert writer.lost_vital == 0


def test_an_error_is_forgotten_once_the_disk_takes_things_again(tmp_path: Path, disk: Disk) -> None:
    now = [100.0]
    writer = Writer(clock=lambda: now[0])
    disk.fill()
    writer.append(tmp_path / "x.log", b"a\n")
    until(lambda: writer.lost_lines)
    disk.empty()
    assert "No space" in writer.last_error
    now[0] += writer_room.ERROR_S
    assert writer.last_error == ""
    assert writer.stop(DEADLINE_S)


def test_a_hung_file_system_delays_nobody(writer: Writer, tmp_path: Path, disk: Disk) -> None:
    disk.released.clear()
    writer.append(tmp_path / "x.log", b"first\n")
    assert disk.reached.wait(DEADLINE_S)
    # Every call below would hang with the disk if it waited for it.
    for number in range(1000):
        writer.append(tmp_path / "events.jsonl", b"%d\n" % number, is_vital=True)
        writer.replace(tmp_path / "status.json", b"%d" % number)
    assert writer.stuck_s(time.monotonic() + 30) >= 30
    assert not writer.flush(0.02)
    disk.released.set()
    assert writer.flush(DEADLINE_S)
    assert (tmp_path / "events.jsonl").read_bytes() == b"".join(b"%d\n" % number for number in range(1000))
    assert (tmp_path / "status.json").read_bytes() == b"999"


def test_behind_a_hung_disk_memory_is_bounded_and_decisions_outlive_logs(tmp_path: Path, disk: Disk) -> None:
    writer = Writer(max_entries=10_000, max_bytes=100_000)
    disk.released.clear()
    writer.append(tmp_path / "x.log", b"first\n")
    assert disk.reached.wait(DEADLINE_S)
    taken = sum(writer.append(tmp_path / "x.log", b"y" * 999 + b"\n") for _ in range(1000))
    assert taken <= 75
    assert writer.lost_lines >= 900
    assert all(writer.append(tmp_path / "events.jsonl", b"z" * 99 + b"\n", is_vital=True) for _ in range(900))
    assert writer.lost_vital == 0
    disk.released.set()
    assert writer.stop(DEADLINE_S)
    assert (tmp_path / "events.jsonl").read_bytes().count(b"\n") == 900


def test_a_fifo_without_reader_hangs_the_thread_and_not_the_process(tmp_path: Path) -> None:
    program = """
import os, sys, time
from retinue.journal.writer import Writer
os.mkfifo(sys.argv[1])
writer = Writer()
writer.append(sys.argv[1], b"nobody reads this")
print(writer.stop(0.1), writer.append("after", b"x"), flush=True)
"""
    child = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "fifo"],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert child.stdout == b"False False\n"


def test_half_a_line_of_a_dead_writer_is_ended_before_the_next(writer: Writer, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"seq":1}\n{"se')
    (tmp_path / "x.log").write_bytes(b"no newline")
    for number in (2, 3):
        writer.append(tmp_path / "events.jsonl", b'{"seq":%d}\n' % number, is_vital=True)
        assert writer.flush(DEADLINE_S)
    writer.append(tmp_path / "x.log", b", here either")
    assert writer.flush(DEADLINE_S)
    assert (tmp_path / "events.jsonl").read_bytes() == b'{"seq":1}\n{"se\n{"seq":2}\n{"seq":3}\n'
    assert (tmp_path / "x.log").read_bytes() == b"no newline, here either"


def test_touch_and_call_run_in_the_thread_and_their_errors_stay_there(writer: Writer, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    os.utime(path, (0, 0))
    writer.touch(path)
    names: list[str] = []
    writer.call("who", lambda: names.append(threading.current_thread().name))
    writer.touch(tmp_path / "gone")
    assert writer.flush(DEADLINE_S)
    assert path.stat().st_mtime > 1e9
    assert names == ["journal"]
    assert "No such file" in writer.last_error
    assert not (tmp_path / "gone").exists()


def test_files_are_closed_soon_so_that_other_nodes_see_their_lines(tmp_path: Path) -> None:
    now = [100.0]
    writer = Writer(clock=lambda: now[0])
    writer.append(tmp_path / "x.log", b"a\n")
    assert writer.flush(DEADLINE_S)
    assert writer._files.is_any_open
    now[0] += files.OPEN_S
    until(lambda: not writer._files.is_any_open)
    assert writer.stop(DEADLINE_S)


def test_no_signal_ends_up_in_the_writer_thread(writer: Writer) -> None:
    tasks = os.listdir("/proc/self/task")
    masks = {
        task: int(row.split()[1], 16)
        for task in tasks
        for row in Path(f"/proc/self/task/{task}/status").read_text().splitlines()
        if row.startswith("SigBlk")
    }
    mask = masks[str(writer._thread.native_id)]
    assert all(mask >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR2))
    assert not masks[str(os.getpid())] >> (signal.SIGTERM - 1) & 1


@pytest.mark.root
def test_on_a_really_full_file_system_decisions_wait_and_arrive(tmp_path: Path, quick_retry: None) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tiny", tmp_path], check=True)
    writer = Writer()
    try:
        (tmp_path / "ballast").write_bytes(b"x" * 50_000)
        for number in range(3000):
            writer.append(tmp_path / "events.jsonl", b"decision %6d\n" % number, is_vital=True)
        until(lambda: "No space" in writer.last_error)
        writer.append(tmp_path / "x.log", b"log\n" * 10_000)
        until(lambda: writer.lost_lines)
        (tmp_path / "ballast").unlink()
        (tmp_path / "x.log").unlink(missing_ok=True)
        assert writer.flush(DEADLINE_S)
        lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
        assert lines == [b"decision %6d" % number for number in range(3000)]
    finally:
        writer.stop(DEADLINE_S)
        subprocess.run(["umount", tmp_path], check=True)
