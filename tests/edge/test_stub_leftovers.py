"""What the trainer leaves running: reported, ended, and proved to be gone. Nobody else's process is touched."""

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from stub_rig import Rig, is_running

DAEMON = """
import os, signal, sys, time
name, scrub, deaf = sys.argv[1:4]
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
if deaf == "deaf":
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
open(name, "w").write(str(os.getpid()))
if scrub == "scrub":
    os.execve("/bin/sleep", ["sleep", "600"], {})
time.sleep(600)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Generator[Rig, None, None]:
    rig = Rig(tmp_path)
    (rig.start_dir / "daemon.py").write_text(DAEMON)
    yield rig
    rig.close()


def start_daemon(name: str, scrub: str = "", deaf: str = "") -> str:
    """A shell line that leaves a daemon and goes on once it has said its pid."""
    return f"{sys.executable} -S daemon.py {name} '{scrub}' '{deaf}'; until [ -s {name} ]; do sleep 0.02; done; "


@pytest.mark.parametrize(("scrub", "deaf"), [("", ""), ("scrub", ""), ("", "deaf")])
def test_a_daemon_that_left_session_and_parent_is_reported_and_ended(rig: Rig, scrub: str, deaf: str) -> None:
    script = start_daemon("pid", scrub, deaf) + "exit 0"
    body = f"shell({script!r})\nhear('trainer_exited')\nhear('leftovers')\nfinish(0)"
    assert rig.run(body) == 0
    pid = int((rig.start_dir / "pid").read_text())
    assert not is_running(pid)
    assert [left["pid"] for left in rig.heard("leftovers")[0]["pids"]] == [pid]
    left = rig.verdict["leftovers"]
    assert [(entry["pid"], entry["survived"]) for entry in left] == [(pid, False)]
    # In the middle of its exec a process has a name and no words.
    assert ("sleep" if scrub else "daemon.py") in left[0]["cmd"]
    assert rig.verdict["clean"] == "true"


def test_a_stopped_daemon_is_ended_too(rig: Rig) -> None:
    script = start_daemon("pid") + "kill -STOP $(cat pid); exit 0"
    assert rig.run(f"shell({script!r})\nhear('trainer_exited')\nfinish(0)") == 0
    assert not is_running(int((rig.start_dir / "pid").read_text()))


def test_what_carries_the_runs_id_is_ended_even_when_it_is_no_descendant(rig: Rig) -> None:
    stranger = subprocess.Popen(["/bin/sleep", "600"], env=rig.environment)
    try:
        assert rig.run("finish(0)") == 0
        assert stranger.wait(10) == -signal.SIGTERM
        assert [left["pid"] for left in rig.verdict["leftovers"]] == [stranger.pid]
    finally:
        stranger.kill()
        stranger.wait()


def test_another_runs_process_is_not_touched(rig: Rig) -> None:
    other = {**os.environ, "RETINUE_RUN_ID": rig.run_id + "0", "X_RETINUE_RUN_ID": rig.run_id}
    stranger = subprocess.Popen(["/bin/sleep", "600"], env=other)
    try:
        assert rig.run("finish(0)") == 0
        assert stranger.poll() is None
        assert rig.verdict["leftovers"] == []
    finally:
        stranger.kill()
        stranger.wait()


def test_a_caller_that_carries_the_runs_id_is_not_ended(rig: Rig) -> None:
    argv = rig.write_record("finish(0)")
    script = 'import subprocess, sys; print(subprocess.call(sys.argv[1:]), "and the caller lives")'
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, *argv], env=rig.environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "0 and the caller lives\n"


def test_a_forking_swarm_is_ended(rig: Rig) -> None:
    swarm = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(600):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "    else:\n"
        "        time.sleep(0.02); os._exit(0)\n"
    )
    (rig.start_dir / "swarm.py").write_text(swarm)
    script = f"{sys.executable} -S swarm.py & echo up > up; exit 0"
    assert rig.run(f"shell({script!r})\nhear('trainer_exited')\nfinish(0)") == 0
    assert rig.find_tagged() == []
    assert rig.verdict["clean"] == "true"


def test_orphans_of_the_launch_are_not_called_the_trainers(rig: Rig) -> None:
    launch = start_daemon("janitor") + "exec sleep 600"
    body = f"""
say(op="launch", argv=["/bin/sh", "-c", {launch!r}])
while not os.path.exists(os.path.join(run["start_dir"], "janitor")): time.sleep(0.02)
shell({start_daemon("daemon")!r})
hear("trainer_exited"); hear("leftovers")
say(op="signal_launch", signal="TERM")
hear("launch_exited")
finish(0)
"""
    assert rig.run(body) == 0
    daemon, janitor = (int((rig.start_dir / name).read_text()) for name in ("daemon", "janitor"))
    assert [left["pid"] for left in rig.heard("leftovers")[0]["pids"]] == [daemon]
    assert sorted(left["pid"] for left in rig.verdict["leftovers"]) == sorted([daemon, janitor])


def test_an_orphan_that_is_about_to_exit_is_not_called_left_behind(rig: Rig) -> None:
    assert rig.run("shell('(sleep 0.3) & exit 0')\nhear('trainer_exited')\nfinish(0)") == 0
    assert rig.verdict["leftovers"] == []
    assert rig.verdict["clean"] == "true"
