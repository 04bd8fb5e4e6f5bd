"""A run directory whose file system hangs: nothing waits for it but what is written there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import fuse_disk
from support.command import ask, start_in_scene
from support.real_run import RealRun, server_service, wait_for

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="the kernel has no FUSE: cannot here"),
]


class HangingDisk:
    """A FUSE daemon in a mount namespace of its own; stopped, it answers nothing."""

    def __init__(self, directory: Path) -> None:
        self.backing, self.mountpoint = directory / "backing", directory / "disk"
        self.backing.mkdir()
        self.mountpoint.mkdir()
        words = [sys.executable, fuse_disk.__file__, str(self.backing), str(self.mountpoint)]
        self.daemon = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.daemon.stdout is not None
        assert self.daemon.stdout.readline() == "up\n"
        self.enter = ("nsenter", "-t", str(self.daemon.pid), "-m", "env", "-C", str(directory))

    def hang(self) -> None:
        self.daemon.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self.daemon.pid}/stat")
        wait_for("the daemon to stand still", lambda: state.read_text().rpartition(")")[2].split()[0] == "T")

    def go_on(self) -> None:
        self.daemon.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Whatever waits for the daemon gets an error when its end of /dev/fuse is closed."""
        self.daemon.kill()
        self.daemon.communicate()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[HangingDisk]:
    disk = HangingDisk(tmp_path)
    yield disk
    disk.close()


@pytest.fixture
def run(tmp_path: Path, disk: HangingDisk) -> Iterator[RealRun]:
    run = RealRun(tmp_path, {"server": server_service(replicas=2)})
    run.run_dir = disk.mountpoint / "run"
    try:
        start_in_scene(run, prefix=disk.enter)
        run.run_dir = disk.backing / "run"
        run.wait_phase("running")
        yield run
    finally:
        disk.go_on()
        run.end_hard()


def kill_and_await_successors(run: RealRun) -> None:
    """Kill both replicas; what answers afterwards was started, probed and published after that."""
    url = run.url("server")
    before = {ask(url)["pid"] for _ in range(8)}
    for index in (0, 1):
        os.kill(run.replica(f"server/{index}")["host_pid"], signal.SIGKILL)
    wait_for("an answer of a successor", lambda: ask(url)["pid"] not in before)


def test_while_it_hangs_replicas_come_back_and_afterwards_the_records_say_so(run: RealRun, disk: HangingDisk) -> None:
    disk.hang()
    kill_and_await_successors(run)
    old = run.status()
    assert all(replica["incarnation"] == 1 for replica in old["replicas"]), "nothing could be written meanwhile"
    disk.go_on()
    run.wait("status to tell of it", lambda: find_stuck_s(run.status()) > 0.2)
    for index in (0, 1):
        run.wait_replica(f"server/{index}", "ready", incarnation=2)
    run.wait("the decisions to be written late", lambda: sum(e["event"] == "Exited" for e in run.events()) >= 2)
    run.wait("status to be well again", lambda: find_stuck_s(run.status()) == 0.0)
    run.signal(signal.SIGTERM)
    assert run.wait_end() == 143
    assert run.verdict()["clean"] == "true"
    run.assert_nothing_left()


def find_stuck_s(status: dict[str, object]) -> float:
    nodes = [node["journal_stuck_s"] for node in status.get("nodes", [])]  # type: ignore[attr-defined]
    return max(status.get("journal", {}).get("stuck_s", 0.0), *nodes, 0.0)  # type: ignore[attr-defined]


def test_a_run_ends_in_time_while_it_hangs_and_says_its_verdict_on_stderr(run: RealRun, disk: HangingDisk) -> None:
    disk.hang()
    run.signal(signal.SIGTERM)
    assert run.wait_end() == 143
    said = run.output.read_text()
    assert "cannot write the verdict" in said
    verdict = json.loads(said.partition("it says ")[2].splitlines()[0])
    assert (verdict["ended_by"], verdict["exit_code"]) == ("signal", 143)
    # close(2) of a log on such a file system cannot even be killed: what stands in it is named, not waited for.
    stuck = [process["pid"] for process in verdict["leftovers"] if process["survived"]]
    assert (verdict["clean"] == "true") == (not stuck), verdict
    disk.go_on()
    run.assert_nothing_left()


def test_a_controller_that_is_killed_while_it_hangs_is_started_again(run: RealRun, disk: HangingDisk) -> None:
    pids = [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)]
    controller = run.status()["controller_pid"]
    disk.hang()
    os.kill(controller, signal.SIGKILL)
    # Only a controller can do this.
    kill_and_await_successors(run)
    disk.go_on()
    run.wait("the next controller's status", lambda: run.status().get("controller_starts") == 2)
    assert pids != [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)]
    run.signal(signal.SIGTERM)
    assert run.wait_end() == 143
    run.assert_nothing_left()
