"""A run directory whose file system hangs: nothing waits for it but what is written there."""

import os
import signal
import sys
from pathlib import Path

import pytest

from support.command import ask
from support.hanging_disk import NOBODY, HangingDisk, needs_fuse, run_on_hanging_disk
from support.real_run import RealRun, server_service, wait_for

pytestmark = needs_fuse
CHATTERBOX = ["/bin/sh", "-c", "while :; do echo talk; sleep 0.05; done"]
SERVICES = {"server": server_service(replicas=2), "chatterbox": {"command": CHATTERBOX, "stop": {"grace": "3s"}}}
"""The second one's log is open on the disk whenever it hangs."""

by_user = pytest.mark.parametrize("uid", [0, NOBODY], ids=["root", "user"])


def kill_and_await_successors(run: RealRun) -> None:
    """Kill both replicas; what answers afterwards was started, probed and published after that."""
    # The caller may be another user than the run's.
    token = (run.run_dir / "token").read_text()
    url = run.url("server")
    before = {ask(url, token=token)["pid"] for _ in range(8)}
    for index in (0, 1):
        os.kill(run.replica(f"server/{index}")["host_pid"], signal.SIGKILL)
    wait_for("an answer of a successor", lambda: ask(url, token=token)["pid"] not in before)


def end_well(run: RealRun, disk: HangingDisk) -> None:
    """The disk is back: the run goes on, and leaves nothing."""
    run.wait("status to be well again", lambda: find_stuck_s(run.status()) == 0.0)
    run.signal(signal.SIGTERM)
    assert run.wait_end() == 143
    assert run.verdict()["clean"] == "true"
    run.assert_nothing_left()


def find_stuck_s(status: dict[str, object]) -> float:
    nodes = [node["journal_stuck_s"] for node in status.get("nodes", [])]  # type: ignore[attr-defined]
    return max(status.get("journal", {}).get("stuck_s", 0.0), *nodes, 0.0)  # type: ignore[attr-defined]


@by_user
def test_while_it_hangs_replicas_come_back_and_afterwards_the_records_say_so(uid: int) -> None:
    with run_on_hanging_disk(SERVICES, uid=uid) as (run, disk):
        disk.hang()
        kill_and_await_successors(run)
        old = run.status()
        assert all(replica["incarnation"] == 1 for replica in old["replicas"]), "nothing could be written meanwhile"
        disk.go_on()
        run.wait("status to tell of it", lambda: find_stuck_s(run.status()) > 0.2)
        for index in (0, 1):
            run.wait_replica(f"server/{index}", "ready", incarnation=2)
        run.wait("the decisions to be written late", lambda: sum(e["event"] == "Exited" for e in run.events()) >= 2)
        end_well(run, disk)


@by_user
def test_a_controller_that_is_killed_while_it_hangs_in_a_close_is_started_again(uid: int) -> None:
    with run_on_hanging_disk({"server": SERVICES["server"]}, uid=uid) as (run, disk):
        # Without a service that talks the controller is the only one that writes.
        controller = run.status()["controller_pid"]
        disk.hang_in_close()
        os.kill(controller, signal.SIGKILL)
        # Only a controller can do this.
        kill_and_await_successors(run)
        assert os.path.exists(f"/proc/{controller}"), "it was to be stuck in the kernel, and is not"
        disk.go_on()
        run.wait("the next controller's status", lambda: run.status().get("controller_starts") == 2)
        run.wait("the kernel to let go of the first one", lambda: not os.path.exists(f"/proc/{controller}"))
        end_well(run, disk)


@by_user
def test_agent_and_gateway_that_are_killed_while_it_hangs_are_started_again(uid: int) -> None:
    with run_on_hanging_disk(SERVICES, uid=uid) as (run, disk):
        pids = {key: run.replica(key)["host_pid"] for key in ("server/0", "server/1", "chatterbox/0")}
        agent, gateway = run.role_pid("agent"), run.role_pid("gateway")
        disk.hang()
        for pid in (agent, gateway):
            os.kill(pid, signal.SIGKILL)
        # Only an agent that joined again can do this: the controller knows the nonce that it had no way to read.
        kill_and_await_successors(run)
        disk.go_on()
        run.wait("the next agent's status", lambda: run.node().get("agent_starts") == 2)
        assert run.replica("chatterbox/0")["host_pid"] == pids["chatterbox/0"], "it was taken over, not started again"
        end_well(run, disk)


def test_a_stub_that_cannot_write_a_line_of_its_own_still_passes_a_stop_on() -> None:
    note = "import pathlib, signal; signal.sigwait([signal.SIGTERM]); pathlib.Path('told').touch()"
    trainer = [sys.executable, "-c", f"import signal; signal.pthread_sigmask(0, [15]); {note}"]
    with run_on_hanging_disk({"server": SERVICES["server"]}, trainer, redirect='exec "$@" >disk/output 2>&1') as scene:
        run, disk = scene
        run.wait("the trainer to be started", lambda: run.status()["trainer"]["pid"])
        disk.hang()
        # It has to say that the directory takes nothing, and a child of it hangs over that.
        wait_for("the stub to have tried", lambda: find_forks(run.stub_pid()))
        run.signal(signal.SIGTERM)
        wait_for("the trainer to be told", (run.directory / "told").exists)
        disk.go_on()
        run.wait_end()
        run.assert_nothing_left()


def find_forks(pid: int) -> list[int]:
    """Children that have not become another program."""
    proc = Path("/proc")
    children = (proc / f"{pid}/task/{pid}/children").read_text().split()
    own = (proc / f"{pid}/cmdline").read_bytes()
    return [int(child) for child in children if (proc / child / "cmdline").read_bytes() == own]
