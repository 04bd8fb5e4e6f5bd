"""Operators on the login node while slurmctld is down: files say all, the controller obeys, Slurm is not asked.

The tests themselves run on `login`: another host, with its own pids, /tmp and network addresses.
"""

import json
import os
import shlex
from pathlib import Path

import pytest

from support.cluster import Cluster, wait_for
from support.command import RETINUE, retinue
from support.slurm_run import SMALL, SlurmRun, server_service
from support.tmux import needs_tmux, terminal

ASKING = ("squeue", "scontrol", "sinfo", "sacct", "sstat", "srun", "scancel")


@pytest.fixture
def run(cluster: Cluster) -> SlurmRun:
    run = SlurmRun(cluster, services={"server": server_service(per_node="all")})
    run.submit("-N2", *SMALL)
    return run.wait_running()


@pytest.fixture
def env(cluster: Cluster) -> dict[str, str]:
    """A PATH in which every command that asks Slurm leaves a trace."""
    tools = cluster.scratch / "tools"
    tools.mkdir()
    for name in ASKING:
        (tools / name).write_text(f"#!/bin/sh\necho {name} >> {cluster.scratch}/asked\nexit 1\n")
        (tools / name).chmod(0o755)
    return {"PATH": f"{tools}:{os.environ['PATH']}"}


def find_batch_host(run: SlurmRun) -> str:
    host: str = json.loads((run.run_dir / "control.json").read_text())["host"]
    return host


def test_every_command_works_while_slurmctld_is_down(cluster: Cluster, run: SlurmRun, env: dict[str, str]) -> None:
    cluster.slurmctld("stop")
    try:
        for words in (("status",), ("status", run.job), ("top", run.job)):
            said = retinue(*words, cwd=run.place, env=env)
            assert said.returncode == 0, said
            assert ("2/2" in said.stdout, "the run is dead" in said.stdout) == (True, False), said
            assert "node2" in said.stdout
        assert "every replica is ready" in retinue("why", cwd=run.place, env=env).stdout
        assert "ServicesReady" in retinue("events", run.job, cwd=run.place, env=env).stdout
        assert "server/1 |" in retinue("logs", "server", cwd=run.place, env=env).stdout
        done = retinue("restart", "server/1", cwd=run.place, env=env)
        assert (done.returncode, done.stdout) == (0, "restarting server/1\n")
        run.wait("its new launch", lambda: run.ready("server") == 2 and run.replicas("node2")[0]["incarnation"] == 2)
        done = retinue("down", run.job, cwd=run.place, env=env)
        assert done.returncode == 0, done
        assert "ended by operator" in done.stdout
        assert not Path(cluster.scratch, "asked").exists()
    finally:
        cluster.slurmctld("start")
    assert run.wait_over()["clean"] == "true"


def test_a_blackholed_first_network_of_the_batch_host_costs_a_moment(
    cluster: Cluster, run: SlurmRun, env: dict[str, str]
) -> None:
    cluster.blackhole(find_batch_host(run))
    done = retinue("restart", "server/0", cwd=run.place, env=env)
    assert (done.returncode, done.stdout) == (0, "restarting server/0\n"), done
    cluster.heal(find_batch_host(run))
    assert retinue("down", cwd=run.place, env=env).returncode == 0


def test_a_batch_host_that_lost_power_is_told_from_its_silent_lock(
    cluster: Cluster, run: SlurmRun, env: dict[str, str]
) -> None:
    host = find_batch_host(run)
    cluster.kill_node(host)

    def read_why() -> str:
        return " ".join(retinue("why", cwd=run.place, env=env).stdout.split())

    assert "the run is dead" not in read_why()
    said = wait_for("why to call it dead", lambda: text if "the run is dead" in (text := read_why()) else "", 100.0)
    assert f"on {host} (pid" in said
    done = retinue("down", cwd=run.place, env=env)
    assert (done.returncode, "has not refreshed its lock" in done.stderr) == (5, True), done


@needs_tmux
def test_top_on_the_login_node_shows_both_nodes_and_restarts_by_a_key(
    cluster: Cluster, run: SlurmRun, env: dict[str, str]
) -> None:
    with terminal((100, 30), **env) as pane:
        pane.run(f"cd {run.place}")
        pane.press("C-l")
        pane.type(f"{shlex.join(RETINUE)} top {run.job}")
        pane.see("trainer running", "nodes 2 joined", "node1", "node2", "server/1")
        pane.press("G", "r", "y")
        pane.see("restarting server/1")
        run.wait("its new launch", lambda: run.replicas("node2")[0]["incarnation"] == 2)
        pane.press("q")
        wait_for("the end", lambda: not pane.child_pid)
    assert not Path(cluster.scratch, "asked").exists()
    assert retinue("down", cwd=run.place, env=env).returncode == 0
