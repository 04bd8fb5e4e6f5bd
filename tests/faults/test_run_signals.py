"""Stop signals in every phase of a run: the exit code says which, the verdict says who, and nothing is left."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import start_in_scene
from support.real_run import RealRun, real_run, server_service

NEVER_READY = {"server": server_service(probes={"readiness": {"exec": ["false"], "period": "200ms"}})}
STUBBORN = """
import signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: open("told", "a").write("x"))
open("up", "w").close()
until = time.monotonic() + 600
while time.monotonic() < until:
    time.sleep(1)
"""
COUNTER = """
import os, signal, sys, time
seen = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: seen.append(number))
open("up", "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
open("seen", "w").write(repr(seen))
sys.exit(7)
"""


def run_script(directory: Path, script: str) -> list[str]:
    (directory / "script.py").write_text(script)
    return [sys.executable, str(directory / "script.py")]


def check_end(run: RealRun, exit_code: int, ended_by: str, clean: tuple[str, ...] = ("true",)) -> dict[str, object]:
    # Less than the default grace of a trainer (60 s), which no stubborn one may use up after a second signal.
    assert run.wait_end(45.0) == exit_code
    verdict = run.verdict()
    run.run_id = verdict["run_id"]
    assert (verdict["ended_by"], verdict["exit_code"]) == (ended_by, exit_code), verdict
    assert verdict["clean"] in clean, verdict
    run.assert_nothing_left()
    return verdict


PHASES = [("the stub's first moment", "TERM", 143), ("joining", "INT", 130), ("starting", "HUP", 129)]


@pytest.mark.parametrize(("phase", "name", "exit_code"), PHASES)
def test_a_signal_before_the_trainer_starts_is_the_exit_code(
    tmp_path: Path, phase: str, name: str, exit_code: int
) -> None:
    with real_run(tmp_path, NEVER_READY) as run:
        looks = {
            "the stub's first moment": lambda: b"stub" in Path(f"/proc/{run.stub_pid()}/cmdline").read_bytes(),
            "joining": run.status,
            "starting": lambda: run.replica("server/0").get("host_pid"),
        }
        run.wait(phase, looks[phase])
        run.signal(signal.Signals[f"SIG{name}"])
        # A node that ends before it has a keeper may not be able to say what it left.
        check_end(run, exit_code, "signal", ("true",))
        assert run.verdict()["trainer"] is None or not run.verdict()["trainer"]["was_started"]


def test_a_trainer_that_ends_in_its_grace_gives_its_own_code(tmp_path: Path) -> None:
    with real_run(tmp_path, {"server": server_service()}, run_script(tmp_path, COUNTER)) as run:
        run.wait("the trainer", (tmp_path / "up").exists)
        run.signal(signal.SIGTERM)
        run.wait("the stop", lambda: run.status().get("ended_by") == "signal")
        assert run.replica("server/0")["phase"] == "ready", "services stay while the trainer has its grace"
        (tmp_path / "go").touch()
        check_end(run, 7, "signal")
        assert (tmp_path / "seen").read_text() == "[15]" or "SIGTERM" in (tmp_path / "seen").read_text()


def test_a_second_signal_cuts_the_trainers_grace_short(tmp_path: Path) -> None:
    with real_run(tmp_path, {"server": server_service()}, run_script(tmp_path, STUBBORN)) as run:
        run.wait("the trainer", (tmp_path / "up").exists)
        run.signal(signal.SIGTERM)
        run.wait("the trainer's signal", (tmp_path / "told").exists)
        run.signal(signal.SIGTERM)
        verdict = check_end(run, 137, "signal")
        assert verdict["services"]["server"]["killed_hard"] == 0  # type: ignore[index]


def test_a_second_signal_cuts_the_services_grace_short(tmp_path: Path) -> None:
    has_handlers = {"readiness": {"exec": ["test", "-e", str(tmp_path / "up")], "period": "200ms"}}
    stubborn = {"command": run_script(tmp_path, STUBBORN), "probes": has_handlers, "stop": {"grace": "10m"}}
    with real_run(tmp_path, {"server": stubborn}, ["true"]) as run:
        run.wait_replica("server/0", "stopping")
        signal_once(run, signal.SIGINT)
        signal_once(run, signal.SIGINT)
        verdict = check_end(run, 0, "trainer")
        assert verdict["services"]["server"]["killed_hard"] == 1  # type: ignore[index]


def test_a_third_signal_ends_everything_whatever_it_does(tmp_path: Path) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]
    services = {"server": server_service(), "stubborn": {"command": stubborn, "stop": {"grace": "10m"}}}
    with real_run(tmp_path, services, run_script(tmp_path, STUBBORN)) as run:
        run.wait("the trainer", lambda: run.status().get("trainer", {}).get("pid"))
        run.wait("its handlers", (tmp_path / "up").exists)
        os.kill(run.status()["controller_pid"], signal.SIGSTOP)
        for _ in range(3):
            signal_once(run, signal.SIGTERM)
        check_end(run, 137, "signal")


def signal_once(run: RealRun, number: int) -> None:
    """Signal and see it taken: the kernel merges one that comes while its like still waits."""
    run.signal(number)
    run.wait("the signal to be taken", lambda: not is_pending(run.stub_pid(), number))


def is_pending(pid: int, number: int) -> bool:
    masks = {
        line.split(":")[0]: int(line.split()[1], 16)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith(("SigPnd", "ShdPnd"))
    }
    return any(mask >> (number - 1) & 1 for mask in masks.values())


def test_a_signal_while_the_nodes_end_changes_nothing(tmp_path: Path) -> None:
    with real_run(tmp_path, {"server": server_service()}, run_script(tmp_path, COUNTER)) as run:
        run.wait("the trainer", (tmp_path / "up").exists)
        outer = run.node()["outer_pid"]
        os.kill(outer, signal.SIGSTOP)
        try:
            (tmp_path / "go").touch()
            run.wait_phase("ending")
            run.signal(signal.SIGINT)
            run.wait("the signal to be noted", lambda: any("SIGINT" in line["reason"] for line in run.events()))
        finally:
            os.kill(outer, signal.SIGCONT)
        check_end(run, 7, "trainer")


@pytest.fixture
def keyboard() -> Iterator[tuple[int, int]]:
    keyboard, slave = os.openpty()
    yield keyboard, slave
    os.close(keyboard)
    os.close(slave)


def test_ctrl_c_reaches_the_trainer_exactly_once(tmp_path: Path, keyboard: tuple[int, int]) -> None:
    run = RealRun(tmp_path, {"server": server_service(replicas=2)}, run_script(tmp_path, COUNTER))
    try:
        start_in_scene(run, terminal=keyboard[1])
        run.wait("the trainer", (tmp_path / "up").exists)
        pids = [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)]
        os.write(keyboard[0], b"\x03")
        run.wait("the stop", lambda: run.status().get("ended_by") == "signal")
        assert [run.replica(f"server/{index}")["host_pid"] for index in (0, 1)] == pids
        (tmp_path / "go").touch()
        verdict = check_end(run, 7, "signal")
        assert (tmp_path / "seen").read_text().count("2") == 1
        assert "SIGINT" in str(verdict["cause"])
    finally:
        run.end_hard()


def test_ctrl_c_before_the_trainer_ends_the_services_in_order(tmp_path: Path, keyboard: tuple[int, int]) -> None:
    run = RealRun(tmp_path, NEVER_READY)
    try:
        start_in_scene(run, terminal=keyboard[1])
        run.wait("the service", lambda: run.replica("server/0").get("host_pid"))
        os.write(keyboard[0], b"\x03")
        verdict = check_end(run, 130, "signal")
        assert verdict["services"]["server"]["killed_hard"] == 0  # type: ignore[index]
    finally:
        run.end_hard()
