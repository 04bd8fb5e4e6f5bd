"""From a login node, which shares only the run's directory and a network: every command works, none asks Slurm."""

import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.command import RETINUE
from support.login import Login, can_unshare
from support.real_run import PATIENCE_S, RealRun, server_service, wait_for
from support.tmux import needs_tmux, terminal

pytestmark = pytest.mark.skipif(not can_unshare(), reason="user namespaces are refused: cannot here")
TALKER = "import time\nfor n in range(10**6):\n print('\\x1b]0;owned\\x07tick', n, flush=True)\n time.sleep(0.2)"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RealRun]:
    talker = {"command": ["python3", "-c", TALKER], "stop": {"grace": "1s"}}
    run = RealRun(tmp_path, {"server": server_service(replicas=2), "talker": talker})
    run.run_dir = tmp_path / "retinue-runs" / "kolibri-4711"
    try:
        run.start().wait_phase("running")
        yield run
    finally:
        run.end_hard()


@pytest.fixture
def login(run: RealRun) -> Iterator[Login]:
    login = Login(run.directory)
    yield login
    assert not login.asked.exists(), f"Slurm was asked: {login.asked.read_text()}"


def test_every_command_that_looks_works_there_by_name_and_job_id(run: RealRun, login: Login) -> None:
    said = {
        words: login.run(*words.split()) for words in ("status", "status 4711", "why", "events", "top kolibri-4711")
    }
    assert {done.returncode for done in said.values()} == {0}
    for words in ("status", "status 4711", "top kolibri-4711"):
        assert "2/2" in said[words].stdout
        assert "the run is dead" not in said[words].stdout
        assert " old" not in said[words].stdout
    assert "every replica is ready" in said["why"].stdout
    assert "ServicesReady" in said["events"].stdout
    assert "server/1 | server listens" in login.run("logs", "server", "--run", "4711").stdout
    assert login.run("gate").returncode == 0
    assert json.loads(login.run("status", "--json").stdout)["run_id"] == run.run_id


def test_restart_and_down_reach_the_controller_from_there(run: RealRun, login: Login, tmp_path: Path) -> None:
    log, events = tmp_path / "log", tmp_path / "events"
    followers = [
        login.start("logs", "server/0", "-f", output=log),
        login.start("events", "-f", "--json", output=events),
    ]
    try:
        wait_for("both to have read what was", lambda: log.read_bytes() and events.read_bytes())
        done = login.run("restart", "server/0")
        assert (done.returncode, done.stdout) == (0, "restarting server/0\n")
        wait_for("the new launch in the log", lambda: log.read_bytes().count(b"listens on port") == 2)
        wait_for("the event", lambda: b"asked by operator" in events.read_bytes())
        done = login.run("down")
        assert done.returncode == 0, done
        assert "ended by operator" in done.stdout
        assert [follower.wait(PATIENCE_S) for follower in followers] == [0, 0]
    finally:
        for follower in followers:
            follower.kill()
            follower.wait()
    over = login.run("restart", "server")
    assert (over.returncode, "the run is over (operator" in over.stderr) == (5, True)
    assert "operator" in login.run("why").stdout


def test_without_a_way_to_the_controller_the_addresses_that_were_tried_are_named(run: RealRun) -> None:
    login = Login(run.directory, has_network=False)
    address = ":".join(map(str, json.loads((run.run_dir / "control.json").read_text())["addresses"][0]))
    for words in (("restart", "server"), ("down", "--timeout", "1")):
        done = login.run(*words)
        assert done.returncode == 5, done
        assert address in done.stderr
    assert "2/2" in login.run("status").stdout
    assert not login.asked.exists()


def kill_at_once(run: RealRun) -> None:
    """As a host that loses power: nobody can tidy up for another."""
    pids = (run.status()["controller_pid"], run.stub_pid(), *run.tagged_pids())
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
    assert run.wait_end() == -signal.SIGKILL


def test_a_run_that_was_killed_elsewhere_is_dead_after_a_minute_of_silence(
    run: RealRun, login: Login, tmp_path: Path
) -> None:
    lock = run.run_dir / "lock"
    kill_at_once(run)
    assert "dead" not in login.run("status").stdout, "its lock was refreshed a moment ago"
    os.utime(lock, (lock.stat().st_mtime - 1000,) * 2)
    os.utime(run.attempt_dir / "status.json", (lock.stat().st_mtime,) * 2)
    for words in (("status",), ("why",), ("top",)):
        said = " ".join(login.run(*words).stdout.split())
        assert "the run is dead, as far as this host can tell" in said, said
    assert re.search(r"this snapshot is 1\d{3} s old", login.run("status", "--json").stderr)
    for words in (("down",), ("restart", "server"), ("gate",)):
        done = login.run(*words)
        assert done.returncode == 5
        assert re.search(r"has not refreshed its lock for 1\d{3} s", done.stderr), done
    follower = login.start("logs", "server", "-f", output=tmp_path / "log")
    try:
        assert follower.wait(PATIENCE_S) == 0
    finally:
        follower.kill()
        follower.wait()
    assert "the run is dead" in (tmp_path / "log").read_text()


@needs_tmux
def test_top_there_follows_a_log_restarts_a_service_and_shows_the_end(run: RealRun, login: Login) -> None:
    with terminal((100, 30), PATH=login.env["PATH"]) as pane:
        pane.run(f"cd {login.directory}")
        pane.press("C-l")
        pane.type(shlex.join([*login.prefix, *RETINUE, "top", "4711"]))
        pane.see("trainer running", "server", "talker", "1 joined", "q quit")
        pane.press("G", "f")
        first = pane.see("log of talker", "tick 1").count("tick")
        assert first > 0
        newest = run.attempt_dir / "logs" / "talker.0" / "launch-1.log"
        seen = newest.read_text().splitlines()[-1].rpartition(" ")[2]
        pane.see(f"tick {int(seen) + 3}")
        assert "owned" not in pane.title
        pane.press("Escape", "r")
        pane.see("restart talker? ")
        pane.press("n")
        pane.see("q quit")
        assert run.replica("talker/0")["incarnation"] == 1
        pane.press("r", "y")
        pane.see("restarting talker/0")
        run.wait_replica("talker/0", "ready", incarnation=2)
        pane.press("j")
        pane.see("talker     ready")
        run.signal(signal.SIGTERM)
        pane.see("over: signal", "exit code 143")
        assert run.wait_end() == 143
        pane.press("r", "y")
        pane.see("cannot restart talker: the run is over")
        pane.press("q")
        wait_for("the end", lambda: not pane.child_pid)
        assert not pane.is_full_screen
