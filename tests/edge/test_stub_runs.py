"""A run from the stub's side: exit codes, refusals, the verdict, and what is removed at the end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from stub_rig import Rig, is_running

from retinue.supervise import stub_verdict
from retinue.terms import run as files


@pytest.fixture
def rig(tmp_path: Path) -> Generator[Rig, None, None]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_trainers_end_is_the_runs_end(rig: Rig, script: str, code: int) -> None:
    assert rig.run(f"shell({script!r})\nuntil_trainer_ends()") == code
    ended = rig.heard("trainer_exited")[0]
    assert (ended["code"], ended["signal"]) == ((code, None) if code < 128 else (None, code - 128))
    assert rig.verdict["exit_code"] == code
    assert rig.verdict["trainer"] == {"code": ended["code"], "signal": ended["signal"], "was_started": True}
    assert rig.verdict["clean"] == "true"


def test_the_controllers_verdict_is_kept_and_completed(rig: Rig) -> None:
    said = {"run_id": "x", "ended_by": "trainer", "cause": "done", "services": {"judge": {"restarts": 2}}, "nodes": {}}
    assert rig.run(f"shell('exit 3')\nhear('trainer_exited')\nfinish(3, {said!r})") == 3
    assert rig.verdict["services"] == {"judge": {"restarts": 2}}
    assert (rig.verdict["ended_by"], rig.verdict["cause"]) == ("trainer", "done")
    assert rig.verdict["trainer"]["code"] == 3
    assert rig.verdict["ended_utc"] > rig.verdict["started_utc"]


def test_the_last_verdict_stands_when_finish_brings_none(rig: Rig) -> None:
    rig.run("say(op='verdict', verdict={'ended_by': 'deadline', 'cause': 'time'})\nfinish(5)")
    assert (rig.verdict["ended_by"], rig.verdict["exit_code"]) == ("deadline", 5)


def test_a_missing_trainer_is_127_and_says_so_to_the_controller(rig: Rig) -> None:
    assert rig.run("trainer('/nowhere/at-all')\nuntil_trainer_ends()") == 127
    refused = rig.heard("trainer_refused")[0]
    assert (refused["errno"], refused["exit_code"]) == (2, 127)
    assert "/nowhere/at-all" in refused["cause"]
    assert not rig.heard("trainer_started")
    assert not rig.heard("trainer_exited")
    assert rig.verdict["trainer"] == {"code": None, "signal": None, "was_started": False}


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_trainer_that_is_no_program_is_126(rig: Rig, mode: int) -> None:
    program = rig.start_dir / "train"
    program.write_text("neither ELF nor a script\n")
    program.chmod(mode)
    assert rig.run(f"trainer({str(program)!r})\nuntil_trainer_ends()") == 126


def test_a_trainer_is_found_in_the_path_of_its_own_environment(rig: Rig) -> None:
    program = rig.start_dir / "train"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    assert rig.run(f"trainer('train', PATH={str(rig.start_dir)!r})\nuntil_trainer_ends()") == 9


def test_a_trainer_asked_for_twice_is_started_once(rig: Rig) -> None:
    body = """
shell("echo x >> runs; until [ -e go ]; do sleep 0.05; done")
hear("trainer_started")
shell("echo x >> runs")
again = hear("trainer_started")
open(os.path.join(run["start_dir"], "go"), "w").close()
until_trainer_ends()
"""
    assert rig.run(body) == 0
    assert (rig.start_dir / "runs").read_text() == "x\n"
    started = rig.heard("trainer_started")
    assert started[0]["pid"] == started[1]["pid"]


def test_the_trainer_gets_the_orders_environment_the_callers_descriptors_and_the_stop_pipe(rig: Rig) -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"from the caller")
    os.close(write_fd)
    os.set_inheritable(read_fd, True)
    script = f"echo $ONLY; cat /dev/fd/{read_fd}; ls -l /proc/$$/fd/$RETINUE_STOP_FD"
    rig.start(f"trainer('/bin/sh', '-c', {script!r}, ONLY='here')\nuntil_trainer_ends()", pass_fds=(read_fd,))
    os.close(read_fd)
    assert rig.wait() == 0
    assert rig.stdout.startswith("here\nfrom the caller")
    assert "pipe:" in rig.stdout


def test_a_pipe_that_was_handed_down_ends_with_the_trainer_not_with_the_run(rig: Rig) -> None:
    read_fd, write_fd = os.pipe()
    body = "shell('exit 0')\nhear('trainer_exited')\nhear('stop')\nfinish(0)"
    rig.start(body, pass_fds=(write_fd,))
    os.close(write_fd)
    assert os.read(read_fd, 1) == b""
    os.close(read_fd)
    rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 0


def test_node_reports_are_passed_on_and_decide_cleanliness(rig: Rig) -> None:
    report = json.dumps({"retinue_node": "n1", "clean": True, "rung": "namespace", "left": [], "note": ""})
    script = f"echo hello from srun; echo '{report}'; printf tail"
    body = f"""
say(op="launch", argv=["/bin/sh", "-c", {script!r}], env={{}}, nodes=["n1", "n2"])
hear("launch_started"); hear("node"); event = hear("launch_exited")
finish(event["code"])
"""
    assert rig.run(body) == 0
    assert rig.heard("node")[0]["report"]["retinue_node"] == "n1"
    assert "hello from srun" in rig.stderr
    assert "tail" in rig.stderr
    assert rig.verdict["nodes"]["n1"]["clean"] == "true"
    assert rig.verdict["nodes"]["n2"]["clean"] == "unknown"
    assert rig.verdict["clean"] == "unknown"


def test_a_launch_that_cannot_be_executed_is_refused(rig: Rig) -> None:
    assert rig.run("say(op='launch', argv=['/no/srun'], env={})\nfinish(hear('launch_refused')['errno'])") == 2


def test_a_launch_gets_the_stop_pipe_by_number_and_a_session_of_its_own(rig: Rig) -> None:
    script = "import os, sys; print(os.readlink(f'/proc/self/fd/{sys.argv[-1]}'), os.getsid(0) == os.getpid())"
    body = f"""
say(op="launch", argv=[{sys.executable!r}, "-S", "-c", {script!r}], env={{}}, stop_fd=True)
hear("launch_exited")
finish(0)
"""
    assert rig.run(body) == 0
    assert "pipe:" in rig.stderr
    assert "True" in rig.stderr


def test_a_launch_that_ignores_finish_and_term_is_killed_and_impatience_shortens_it(rig: Rig) -> None:
    body = """
say(op="launch", argv=["/bin/sh", "-c", "trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done"])
hear("launch_started")
hear("stop")
finish(0)
"""
    rig.start(body)
    pid = int(rig.await_file("pid"))
    for _ in range(3):
        rig.signal_stub(signal.SIGTERM)
    assert rig.wait() == 0
    assert not is_running(pid)


def test_the_end_removes_our_part_of_the_node_directory_and_our_lock_only(rig: Rig) -> None:
    (rig.run_dir / "lock").write_text(json.dumps({"run_id": rig.run_id, "attempt": 0}))
    (rig.controller_dir / "ca").mkdir()
    (rig.controller_dir / "ca" / "key.pem").write_text("secret")
    (rig.node_dir / "of-the-keeper").write_text("stays: its outer process removes it")
    assert rig.run("finish(0)") == 0
    assert not rig.controller_dir.exists()
    assert [path.name for path in rig.node_dir.iterdir()] == ["of-the-keeper"]
    assert not (rig.run_dir / "lock").exists()


def test_another_runs_lock_stays(rig: Rig) -> None:
    (rig.run_dir / "lock").write_text(json.dumps({"run_id": "someone-else", "attempt": 0}))
    assert rig.run("finish(0)") == 0
    assert (rig.run_dir / "lock").exists()
    assert not rig.node_dir.exists()


def test_a_vanished_attempt_directory_changes_no_exit_code_and_the_verdict_is_printed(rig: Rig) -> None:
    rig.attempt_dir.rmdir()
    assert rig.run("shell('exit 7')\nuntil_trainer_ends()") == 7
    assert "cannot write the verdict" in rig.stderr
    assert '"exit_code": 7' in rig.stderr


def test_an_address_that_is_not_ours_is_an_internal_error_with_a_verdict(rig: Rig) -> None:
    assert rig.run("finish(0)", listen_host="192.0.2.1") == 70
    assert rig.verdict["ended_by"] == "internal"
    assert "192.0.2.1" in rig.verdict["cause"]


def test_an_unreadable_run_record_is_70(rig: Rig) -> None:
    rig.run_json.write_text("{")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "retinue", "stub", str(rig.run_json)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 70
    assert str(rig.run_json) in done.stderr


def test_a_running_stub_is_small_and_imports_the_standard_library_only(rig: Rig) -> None:
    rig.start("shell('until [ -e go ]; do sleep 0.05; done')\nuntil_trainer_ends()")
    rig.await_event("trainer_started")
    status = Path(f"/proc/{rig.stub_pid}/status").read_text()
    rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert rss_kib < 16 * 1024
    maps = Path(f"/proc/{rig.stub_pid}/maps").read_text()
    assert "site-packages" not in maps
    (rig.start_dir / "go").touch()
    assert rig.wait() == 0


def test_importing_the_stub_imports_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; import retinue.supervise.stub; "
        "print([n for n in {m.split('.')[0] for m in sys.modules} if n not in sys.stdlib_module_names "
        "and not n.startswith(('__', '_distutils_hack', 'sitecustomize', 'retinue'))])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_file_names_are_those_of_the_vocabulary() -> None:
    assert (stub_verdict.VERDICT, stub_verdict.LOCK) == (files.VERDICT, files.LOCK)
