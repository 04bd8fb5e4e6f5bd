"""A file system that does not come back from a call: known soon, waited for by nobody, and holding nothing else up.

A FIFO that nobody reads stands in for it: open(2) does not return.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from retinue.journal.writer import Writer
from retinue.node.proof import read_nonce
from retinue.node.threads import Threads

DEADLINE_S = 20.0


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    # Lets every thread go that still waits in open(2).
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


@pytest.fixture
def writer(fifo: Path) -> Iterator[Writer]:
    made = Writer()
    yield made
    with open(fifo, "rb+", buffering=0):
        made.stop(DEADLINE_S)
        made._thread.join(DEADLINE_S)
    assert not made._thread.is_alive()


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < end_s
        tick.wait(0.005)


def test_a_flush_gives_up_on_a_file_system_that_hangs_long_before_its_limit(writer: Writer, fifo: Path) -> None:
    writer.append(fifo, b"a line\n")
    until(lambda: writer.is_hung)
    asked_s = time.monotonic()
    assert not writer.flush(10 * DEADLINE_S)
    assert time.monotonic() - asked_s < DEADLINE_S


def test_a_file_system_that_comes_back_is_not_called_hung_any_more(writer: Writer, fifo: Path) -> None:
    writer.append(fifo, b"a line\n")
    until(lambda: writer.is_hung)
    with open(fifo, "rb+", buffering=0) as reader:
        assert reader.read(7) == b"a line\n"
        assert writer.flush(DEADLINE_S)
        assert not writer.is_hung


def test_a_full_disk_is_not_called_hung(writer: Writer, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    writer.append(tmp_path / "full", b"a decision\n", is_vital=True)
    until(lambda: "No space" in writer.last_error)
    assert not writer.flush(1.5)
    assert not writer.is_hung


def test_the_thread_has_descriptors_of_its_own(writer: Writer, tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def look() -> None:
        table = "/proc/thread-self/fd"
        links = {}
        for name in os.listdir(table):
            try:
                links[name] = os.readlink(f"{table}/{name}")
            except FileNotFoundError:  # listdir's own
                continue
        seen.append(links)

    with open(tmp_path / "the process's", "w") as theirs:
        writer.append(tmp_path / "the thread's", b"x\n")
        writer.call("look", look)
        assert writer.flush(DEADLINE_S)
        ours = {os.readlink(f"/proc/self/fd/{name}") for name in (str(theirs.fileno()), "1")}
    (links,) = seen
    assert [links[name] for name in "012"] == ["/dev/null"] * 3
    assert not ours & set(links.values())
    assert str(tmp_path / "the thread's") in links.values()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_thread_is_said_where_an_error_is_looked_for(tmp_path: Path) -> None:
    writer = Writer()
    writer.call("bug", lambda: {}["nothing"])
    writer._thread.join(DEADLINE_S)
    assert "KeyError" in writer.last_error


async def test_an_agent_that_is_started_again_proves_itself_without_the_shared_file_system(
    tmp_path: Path, fifo: Path
) -> None:
    attempt, node = tmp_path / "attempt-0", tmp_path / "node"
    attempt.mkdir()
    node.mkdir()
    (attempt / "nonce").write_text("proof\n")
    assert await read_nonce(Threads(), str(attempt), str(node)) == "proof"
    (attempt / "nonce").unlink()
    fifo.rename(attempt / "nonce")
    try:
        assert await read_nonce(Threads(), str(attempt), str(node)) == "proof"
    finally:
        (attempt / "nonce").rename(fifo)
