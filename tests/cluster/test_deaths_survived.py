"""SIGKILL, one after the other, to what a run on several nodes outlives; and what it must not even notice.

One run for all of it, so that each death also happens to a run that has survived the ones before.
"""

from collections.abc import Callable
from typing import Any

from support.cluster import Cluster
from support.cluster_clean import assert_nothing_left
from support.slurm_run import SlurmRun, server_service

GROUPS = {"train": {"count": 1}, "env": {"count": "rest"}}
BATCH_HOST, OTHER = "node1", "node2"


def start(cluster: Cluster) -> SlurmRun:
    services = {
        "web": server_service(per_node="all"),
        "pool": server_service(replicas=3, place={"on": "env"}),
    }
    run = SlurmRun(cluster, nodes=GROUPS, trainer={"on": "train"}, services=services)
    return run.submit("-N4", "--no-kill").wait_running()


def read_pids(run: SlurmRun) -> dict[str, int]:
    return {replica["id"]: replica["host_pid"] for replica in run.status()["replicas"]}


def count_steps(cluster: Cluster, run: SlurmRun) -> int:
    steps = cluster.call("squeue", "-h", "-s", "-j", run.job, "-o", "%i").split()
    return len([step for step in steps if not step.endswith((".batch", ".extern"))])


def kill_role(run: SlurmRun, host: str, role: str) -> None:
    """Kill our process of this role on the host, and wait for the one that takes its place."""
    (before,) = run.find_role(host, role)
    run.kill(host, before)
    run.wait(f"another {role} on {host}", lambda: run.find_role(host, role) not in ([], [before]))


def kill_controller(run: SlurmRun) -> None:
    before = run.status()["controller_pid"]
    run.kill(BATCH_HOST, before)
    run.wait("another controller", lambda: run.status()["controller_pid"] != before)


def kill_janitor(run: SlurmRun, host: str) -> None:
    """The janitor has the outer process's words, and is nobody's child."""
    outer = run.node(host)["outer_pid"]
    (before,) = [pid for pid in run.find_outer(host) if pid != outer]
    run.kill(host, before)
    run.wait("another janitor", lambda: set(run.find_outer(host)) - {outer, before})


def lose(run: SlurmRun, host: str, kill: Callable[[], None]) -> dict[str, Any]:
    """Kill what a node cannot live without: the rest goes on, with as many movable replicas as before."""
    kill()
    run.wait(f"{host} to be lost", lambda: run.node(host)["state"] in ("lost", "ended"))
    run.wait("the pool on other nodes", lambda: run.ready("pool") == 3)
    assert all(replica["phase"] == "failed" for replica in run.replicas(host)), run.replicas(host)
    return run.status()


def test_what_a_run_outlives(cluster: Cluster) -> None:
    run = start(cluster)
    pids, trainer = read_pids(run), run.status()["trainer"]["pid"]
    for host in (BATCH_HOST, OTHER):
        for role in ("agent", "gateway"):
            kill_role(run, host, role)
        kill_janitor(run, host)
    kill_controller(run)
    client, shepherd = run.find_srun()
    run.kill(BATCH_HOST, shepherd)
    cluster.kill_stepd(f"{run.job}.0", "node4")
    run.kill(BATCH_HOST, client, "STOP")
    run.wait("all nodes back with the new controller", lambda: all_joined(run))
    assert (read_pids(run), run.status()["trainer"]["pid"]) == (pids, trainer)
    run.kill(OTHER, pids["web/1"])
    run.wait("web/1 again", lambda: read_pids(run)["web/1"] not in (0, pids["web/1"]) and run.ready("web") == 4)
    assert count_steps(cluster, run) == 1

    # A stopped srun passes nothing on; what it holds back arrives when it goes on.
    run.kill(BATCH_HOST, client, "CONT")
    lose(run, "node2", lambda: run.kill("node2", run.node("node2")["keeper_host_pid"]))
    lose(run, "node3", lambda: run.kill("node3", run.node("node3")["outer_pid"]))
    assert count_steps(cluster, run) == 1
    verdict = run.end()
    assert (verdict["ended_by"], verdict["exit_code"]) == ("signal", 143)
    assert {name: node["clean"] for name, node in verdict["nodes"].items()} == dict.fromkeys(cluster.nodes, "true")
    assert verdict["controller_starts"] == 2
    # Its way to say so died with slurmstepd: the step at the end asked it.
    assert verdict["nodes"]["node4"]["rung"] == "tag"
    assert_nothing_left(cluster, run.run_dir)


def all_joined(run: SlurmRun) -> bool:
    nodes = run.status().get("nodes", ())
    return len(nodes) == 4 and all(node["state"] == "joined" for node in nodes)
