"""The commands as a new user gives them, on one run that is up."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import RETINUE, ask, retinue
from support.real_run import PATIENCE_S, RealRun, is_running, server_service, wait_for


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRun]:
    directory = tmp_path_factory.mktemp("up")
    run = RealRun(directory, {"server": server_service(replicas=2)})
    done = subprocess.run(
        [*RETINUE, "up", "--run-dir", "run", "run.yaml"],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    try:
        assert done.returncode == 0, done
        assert "ready: server" in done.stdout
        assert "retinue down" in done.stdout
        run.wait_phase("running")
        yield run
    finally:
        end_detached(run)


def end_detached(run: RealRun) -> None:
    lock = run.run_dir / "lock"
    try:
        os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    except (OSError, ValueError):
        pass
    run.end_hard()


def start_following(*words: str, cwd: Path, output: Path) -> subprocess.Popen[bytes]:
    with open(output, "wb") as file:
        return subprocess.Popen([*RETINUE, *words], cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=file)


def test_status_shows_services_and_nodes_and_is_json_for_programs(up: RealRun) -> None:
    shown = retinue("status", cwd=up.directory)
    assert shown.returncode == 0
    assert "server" in shown.stdout
    assert "2/2" in shown.stdout
    said = json.loads(retinue("status", "run", "--json", cwd=up.directory).stdout)
    assert said["run_id"] == up.run_id
    assert [replica["phase"] for replica in said["replicas"]] == ["ready", "ready"]


def test_why_of_a_running_run_says_that_it_is_well(up: RealRun) -> None:
    shown = retinue("why", cwd=up.directory)
    assert shown.returncode == 0
    assert "every replica is ready" in shown.stdout


def test_logs_name_the_replica_and_refuse_an_unknown_service_with_the_known_ones(up: RealRun) -> None:
    shown = retinue("logs", "server", cwd=up.directory).stdout
    assert "server/0 | server listens on port" in shown
    assert "server/1 | server listens on port" in shown
    assert "|" not in retinue("logs", "server/1", cwd=up.directory).stdout
    unknown = retinue("logs", "nosuch", cwd=up.directory)
    assert (unknown.returncode, "server" in unknown.stderr) == (2, True)


def test_gate_is_0_when_ready_2_for_an_unknown_service(up: RealRun) -> None:
    assert retinue("gate", cwd=up.directory).returncode == 0
    assert retinue("gate", "server", cwd=Path("/"), env={"RETINUE_RUN_DIR": str(up.run_dir)}).returncode == 0
    unknown = retinue("gate", "nosuch", cwd=up.directory)
    assert (unknown.returncode, "server" in unknown.stderr) == (2, True)


def test_an_unknown_run_says_where_it_looked(up: RealRun, tmp_path: Path) -> None:
    for words in (("status",), ("why", "nosuch"), ("down", "nosuch"), ("events",), ("logs", "x"), ("gate",)):
        done = retinue(*words, cwd=tmp_path)
        assert done.returncode == 2, done
        assert "cannot find a run at" in done.stderr


def test_restart_gives_one_replica_a_new_incarnation_and_the_followers_see_it(up: RealRun, tmp_path: Path) -> None:
    log, events = tmp_path / "log", tmp_path / "events"
    followers = [
        start_following("logs", "server/0", "-f", "-n", "0", cwd=up.directory, output=log),
        start_following("events", "-f", "--json", "-n", "0", cwd=up.directory, output=events),
    ]
    try:
        other = up.replica("server/1")
        assert retinue("restart", "nosuch", cwd=up.directory).returncode == 2
        done = retinue("restart", "server/0", cwd=up.directory)
        assert (done.returncode, done.stdout) == (0, "restarting server/0\n")
        up.wait_replica("server/0", "ready", incarnation=2)
        wait_for("the new launch in the log", lambda: b"listens on port" in log.read_bytes())
        wait_for("the event", lambda: b"asked by operator" in events.read_bytes())
        assert up.replica("server/1") == other
        assert ask(up.url("server"))["words"] == 2
    finally:
        for follower in followers:
            follower.kill()
            follower.wait()
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert {line["subject"] for line in lines} == {"server/0"}, "-n 0 shows nothing from before"
    assert log.read_text().count("listens") == 1


def test_gate_waits_for_a_service_that_is_not_ready_and_says_5_in_time(up: RealRun) -> None:
    pids = [up.replica(f"server/{index}")["host_pid"] for index in (0, 1)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        up.wait("nothing to be ready", lambda: up.status()["services"][0]["ready"] == 0)
        late = retinue("gate", "--timeout", "0.5", cwd=up.directory)
        assert (late.returncode, "server 0/1" in late.stderr) == (5, True)
        waiting = subprocess.Popen([*RETINUE, "gate"], cwd=up.directory, stderr=subprocess.PIPE)
        assert waiting.stderr is not None
        assert b"waiting for server" in waiting.stderr.readline()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    assert waiting.wait(PATIENCE_S) == 0
    waiting.stderr.close()


def test_down_ends_the_followers_prints_the_verdict_and_may_be_said_twice(up: RealRun, tmp_path: Path) -> None:
    follower = start_following("events", "-f", cwd=up.directory, output=tmp_path / "events")
    try:
        done = retinue("down", cwd=up.directory)
        assert done.returncode == 0, done
        assert "ended by operator" in done.stdout
        assert follower.wait(PATIENCE_S) == 0
    finally:
        follower.kill()
        follower.wait()
    assert (up.verdict()["clean"], up.verdict()["exit_code"]) == ("true", 0)
    up.assert_nothing_left()
    assert retinue("down", cwd=up.directory).stdout == done.stdout
    assert "StopBegun" in (tmp_path / "events").read_text()
    assert "operator" in retinue("why", cwd=up.directory).stdout
    assert retinue("gate", cwd=up.directory).returncode == 5
    over = retinue("restart", "server", cwd=up.directory)
    assert (over.returncode, "the run is over (operator" in over.stderr) == (5, True), over


def test_up_that_cannot_become_ready_is_5_and_why_tells_the_last_words(tmp_path: Path) -> None:
    crash = ["python3", "-c", "import sys; sys.exit('no weights at /models')"]
    never = {"readiness": {"exec": ["false"], "period": "1s"}}
    run = RealRun(tmp_path, {"judge": {"command": crash, "probes": never, "restart": {"backoff": "100ms", "limit": 1}}})
    try:
        done = retinue("up", "--run-dir", "run", "run.yaml", cwd=tmp_path)
        assert done.returncode == 5, done
        assert "judge/0" in done.stderr
        assert "retinue why" in done.stderr
        told = retinue("why", cwd=tmp_path).stdout
        assert "not_ready" in told
        assert "no weights at /models" in told
        assert (run.verdict()["clean"], run.verdict()["exit_code"]) == ("true", 5)
        run.status()
        run.assert_nothing_left()
    finally:
        end_detached(run)


def test_up_in_the_foreground_ends_with_ctrl_c(tmp_path: Path) -> None:
    run = RealRun(tmp_path, {"server": server_service()})
    with open(run.output, "w") as output:
        run.stub = subprocess.Popen(
            [*RETINUE, "up", "--foreground", "--run-dir", "run", "run.yaml"],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        run.wait_phase("running")
        run.signal(signal.SIGINT)
        assert run.wait_end() == 130
        assert (run.verdict()["ended_by"], run.verdict()["clean"]) == ("signal", "true")
        run.assert_nothing_left()
    finally:
        run.end_hard()


def test_an_old_snapshot_is_said_to_be_old_and_does_not_open_the_gate(tmp_path: Path) -> None:
    run = RealRun(tmp_path, {"server": server_service()})
    controller = 0
    try:
        controller = run.start().wait_phase("running")["controller_pid"]
        os.kill(controller, signal.SIGSTOP)
        path = run.attempt_dir / "status.json"
        # By the file's own stamp: a clock in it may be another host's.
        os.utime(path, (time.time() - 60,) * 2)
        late = retinue("gate", "--run", "run", "--timeout", "1", cwd=tmp_path)
        assert (late.returncode, "a newer snapshot (this snapshot is 6" in late.stderr) == (5, True), late
        for words, stream in ((("status",), "stdout"), (("why",), "stdout"), (("status", "--json"), "stderr")):
            said = " ".join(getattr(retinue(*words, cwd=tmp_path), stream).split())
            assert "s old: the controller is down, or the file system is full or hangs" in said
        run.signal(signal.SIGTERM)
        assert run.wait_end() == 143
        run.assert_nothing_left()
    finally:
        run.end_hard()
        if is_running(controller):
            # Stopped, it does not even see that its stub is gone.
            os.kill(controller, signal.SIGKILL)
