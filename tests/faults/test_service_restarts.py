"""New incarnations that somebody wanted: an operator, or a service whose dependency was started again."""

import subprocess
import sys
from pathlib import Path

from service_scenes import build_program, build_server, end_cleanly, find_events, get, running

from support.real_run import RealRun

GIVES_UP = "raise SystemExit(3)"
MENDED = "import time; time.sleep(600)"


def restart(run: RealRun, target: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "retinue", "restart", target, "--run", str(run.run_dir)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def count_incarnations(run: RealRun) -> dict[str, int]:
    return {replica["id"]: replica["incarnation"] for replica in run.status()["replicas"]}


def test_a_restart_reaches_one_replica_a_service_and_those_who_asked_to_follow(tmp_path: Path) -> None:
    services = {
        "base": build_server(tmp_path, "base", replicas=2),
        "follows": build_server(
            tmp_path, "follows", depends_on={"base": {"condition": "ready", "restart": True}}, restart={"limit": 0}
        ),
        "stays": build_server(tmp_path, "stays", depends_on={"base": "ready"}),
        "broken": build_program(tmp_path, "broken", GIVES_UP),
    }
    with running(tmp_path, services) as run:
        run.wait_replica("broken/0", "failed")
        answer = restart(run, "base/1")
        assert (answer.returncode, answer.stdout) == (0, "restarting base/1\n")
        run.wait_replica("base/1", "ready", incarnation=2)
        run.wait_replica("follows/0", "ready", incarnation=2)
        assert "its dependency base was started again" in find_events(run, "follows/0", "RestartAsked")[0]["reason"]
        assert count_incarnations(run) == {"base/0": 1, "base/1": 2, "follows/0": 2, "stays/0": 1, "broken/0": 1}
        check_whole_service(run)
        check_what_had_given_up(run, tmp_path)
        check_what_is_not_there(run)
        verdict = end_cleanly(run)
    assert [verdict["services"][name]["failed"] for name in services] == [[], [], [], []]
    assert {name: entry["killed_hard"] for name, entry in verdict["services"].items()} == dict.fromkeys(services, 0)


def check_whole_service(run: RealRun) -> None:
    assert restart(run, "stays").stdout == "restarting stays/0\n"
    run.wait_replica("stays/0", "ready", incarnation=2)
    assert get(run.url("stays")) == "stays/0 2"


def check_what_had_given_up(run: RealRun, directory: Path) -> None:
    """An operator who mended it brings it back: the one way out of `failed`."""
    (directory / "broken.py").write_text(MENDED)
    assert restart(run, "broken").returncode == 0
    run.wait_replica("broken/0", "ready", incarnation=2)


def check_what_is_not_there(run: RealRun) -> None:
    answer = restart(run, "base/7")
    assert answer.returncode == 2
    assert 'no service or replica is called "base/7"; services are base' in answer.stderr
