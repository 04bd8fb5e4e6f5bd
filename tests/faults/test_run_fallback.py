"""Where user namespaces are refused, or switched off: weaker, named everywhere, and no promise less."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_kill_each as kills

from support.command import retinue, start_in_scene
from support.real_run import RealRun, real_run, server_service

REFUSED = ("unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh")
KILLS = [function for name, function in vars(kills).items() if name.startswith("test_")]


@pytest.fixture
def refused(tmp_path: Path) -> Iterator[RealRun]:
    run = RealRun(tmp_path, {"server": server_service(replicas=2)})
    try:
        start_in_scene(run, prefix=REFUSED)
        run.wait_phase("running")
        run.wait("the trainer's pid", lambda: run.status()["trainer"]["pid"])
        assert run.node()["rung"] == "subreaper"
        yield run
    finally:
        run.end_hard()


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.__name__.removeprefix("test_"))
def test_without_namespaces(refused: RealRun, kill: Callable[[RealRun], None]) -> None:
    kill(refused)


def test_the_weaker_rung_is_named_while_it_runs_and_in_the_verdict(refused: RealRun) -> None:
    assert "namespace" in refused.node()["weaker"]
    assert "namespace" in retinue("status", refused.run_dir, cwd=refused.directory).stdout
    verdict = kills.end_cleanly(refused)
    node = next(iter(verdict["nodes"].values()))  # type: ignore[attr-defined]
    assert node["rung"] == "subreaper"
    assert "no user namespace" in node["note"]


def test_namespaces_switched_off_are_named_before_and_after(tmp_path: Path) -> None:
    script = "import os; os.setsid() if os.fork() else None; os.execvp('sleep', ['sleep', '600'])"
    services = {"server": server_service(), "forks": {"command": ["python3", "-c", script]}}
    with real_run(tmp_path, services, node={"namespace": "off"}) as run:
        run.wait_phase("running")
        assert "namespace: off" in retinue("plan", run.manifest, cwd=tmp_path).stdout
        assert json.loads((run.attempt_dir / "plan.json").read_text())["wants_namespace"] is False
        assert run.node()["rung"] == "subreaper"
        os.kill(run.node()["keeper_host_pid"], signal.SIGKILL)
        assert run.wait_end() == 5
        node = next(iter(run.verdict()["nodes"].values()))
        assert (node["clean"], node["rung"]) == ("true", "subreaper")
        run.assert_nothing_left()
