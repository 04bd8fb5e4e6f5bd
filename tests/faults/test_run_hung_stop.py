"""The end of a run whose run directory hangs: in time, and with a verdict that somebody gets to see."""

import json
import os
import signal
import sys
import time
from typing import Any

import pytest

from support.hanging_disk import NOBODY, HangingDisk, needs_fuse, run_on_hanging_disk
from support.real_run import RealRun, server_service, wait_for

pytestmark = needs_fuse
PATIENCE_S = 30.0
"""Far more than it takes, and less than the sum of what everybody would wait for it on his own."""
TALK = "while :; do echo talk; sleep 0.05; done"
CHATTERBOX = {"command": ["/bin/sh", "-c", TALK], "stop": {"grace": "3s"}}
HOLDER = "import signal, sys\nfile = open(sys.argv[1], 'w')\nprint('up', file=file, flush=True)\nsignal.pause()\n"
"""Has a file open: where the disk hangs, its death is stuck in the close of it, and no signal changes that."""

by_user = pytest.mark.parametrize("uid", [0, NOBODY], ids=["root", "user"])


def read_said_verdict(run: RealRun) -> dict[str, Any]:
    said = run.output.read_text()
    assert "cannot write the verdict" in said, said
    verdict: dict[str, Any] = json.loads(said.partition("it says ")[2].splitlines()[0])
    return verdict


def stop_and_time(run: RealRun, number: int = signal.SIGTERM) -> int:
    began_s = time.monotonic()
    run.signal(number)
    code = run.wait_end(PATIENCE_S)
    print(f"the stop took {time.monotonic() - began_s:.1f} s")
    return code


def has_output(disk: HangingDisk) -> bool:
    path = disk.backing / "output"
    return path.exists() and bool(path.read_text())


def find_survivors(verdict: dict[str, Any]) -> list[int]:
    return [process["pid"] for process in verdict["leftovers"] if process["survived"]]


def assert_true_and_nothing_later(run: RealRun, disk: HangingDisk, verdict: dict[str, Any]) -> None:
    """What stands in the kernel is named, not waited for, and goes when the disk is back."""
    assert (verdict["clean"] == "true") == (not find_survivors(verdict)), verdict
    disk.go_on()
    run.assert_nothing_left()
    wait_for("the kernel to let go", lambda: not any(os.path.exists(f"/proc/{p}") for p in find_survivors(verdict)))


@by_user
@pytest.mark.parametrize("services", [{"server": server_service()}, {"box": CHATTERBOX}], ids=["quiet", "talking"])
def test_a_run_ends_in_time_while_it_hangs_and_says_its_verdict_on_stderr(services: dict[str, Any], uid: int) -> None:
    with run_on_hanging_disk(services, uid=uid) as (run, disk):
        disk.hang()
        assert stop_and_time(run) == 143
        verdict = read_said_verdict(run)
        assert (verdict["ended_by"], verdict["exit_code"]) == ("signal", 143)
        assert_true_and_nothing_later(run, disk, verdict)


@by_user
def test_a_run_that_hangs_in_a_close_ends_in_time_and_names_what_the_kernel_keeps(uid: int) -> None:
    with run_on_hanging_disk({"box": CHATTERBOX}, uid=uid) as (run, disk):
        disk.hang_in_close()
        assert stop_and_time(run) == 143
        verdict = read_said_verdict(run)
        assert verdict["clean"] == "false", verdict
        assert find_survivors(verdict), verdict
        assert_true_and_nothing_later(run, disk, verdict)


def test_a_directory_that_comes_back_just_in_time_gets_the_verdict() -> None:
    with run_on_hanging_disk({"box": CHATTERBOX}) as (run, disk):
        disk.hang()
        run.signal(signal.SIGTERM)
        # The keys go right before the verdict is written.
        wait_for("the node directory to go", lambda: not run.node_dirs())
        disk.go_on()
        assert run.wait_end(PATIENCE_S) == 143
        assert (run.verdict()["ended_by"], run.verdict()["exit_code"]) == ("signal", 143)
        run.assert_nothing_left()


@by_user
def test_a_trainer_that_the_kernel_keeps_is_killed_given_up_and_named(uid: int) -> None:
    trainer = [sys.executable, "-c", HOLDER, "disk/output"]
    with run_on_hanging_disk({"server": server_service()}, trainer, uid, stop_grace="1s") as (run, disk):
        pid = run.wait("the trainer's pid", lambda: run.status()["trainer"]["pid"])
        wait_for("the trainer to have its file open", lambda: has_output(disk))
        disk.hang()
        assert stop_and_time(run) == 137
        verdict = read_said_verdict(run)
        assert pid in find_survivors(verdict), verdict
        assert_true_and_nothing_later(run, disk, verdict)


@by_user
def test_a_service_that_the_kernel_keeps_does_not_keep_the_run(uid: int) -> None:
    services = {"holder": {"command": [sys.executable, "-c", HOLDER, "disk/output"], "stop": {"grace": "1s"}}}
    with run_on_hanging_disk(services, uid=uid) as (run, disk):
        wait_for("the service to have its file open", lambda: has_output(disk))
        disk.hang()
        assert stop_and_time(run) == 143
        assert_true_and_nothing_later(run, disk, read_said_verdict(run))


@by_user
@pytest.mark.parametrize("role", ["keeper", "outer", "stub"])
def test_a_run_that_loses_one_of_ours_while_it_hangs_ends_in_time(role: str, uid: int) -> None:
    with run_on_hanging_disk({"box": CHATTERBOX}, uid=uid) as (run, disk):
        pids = {"keeper": run.node()["keeper_host_pid"], "outer": run.node()["outer_pid"], "stub": run.stub_pid()}
        controller = run.status()["controller_pid"]
        disk.hang()
        os.kill(pids[role], signal.SIGKILL)
        assert run.wait_end(PATIENCE_S) == (-9 if role == "stub" else 5)
        wait_for("the verdict", lambda: "cannot write the verdict" in run.output.read_text(), PATIENCE_S)
        assert read_said_verdict(run)["ended_by"] == ("stub_lost" if role == "stub" else "node_lost")
        disk.go_on()
        run.assert_nothing_left()
        wait_for("the controller to go", lambda: not os.path.exists(f"/proc/{controller}"))
