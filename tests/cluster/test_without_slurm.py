"""What a run does needs no Slurm: its daemons stop and start again, services restart, and one step is all there is."""

from support.cluster import Cluster
from support.cluster_clean import assert_nothing_left
from support.slurm_run import SMALL, SlurmRun, server_service

RESTARTS = 50


def count_steps(cluster: Cluster, run: SlurmRun) -> int:
    steps = cluster.call("squeue", "-h", "-s", "-j", run.job, "-o", "%i").split()
    return len([step for step in steps if not step.endswith((".batch", ".extern"))])


def restart(run: SlurmRun, service: str) -> None:
    """Kill all replicas of a service, and wait until all are back."""
    before = {item["id"]: item for item in run.status()["replicas"] if item["id"].startswith(service)}
    for item in before.values():
        run.kill(item["node"], item["host_pid"])

    def are_back() -> bool:
        now = [item for item in run.status()["replicas"] if item["id"] in before]
        return all(item["incarnation"] > before[item["id"]]["incarnation"] and item["phase"] == "ready" for item in now)

    run.wait(f"{service} to be back", are_back)


def test_fifty_restarts_and_three_controllers_make_no_second_step(cluster: Cluster) -> None:
    crash = {"replicas": 10, "command": ["false"], "probes": {}, "restart": {"backoff": "0s", "limit": RESTARTS // 10}}
    services = {"web": server_service(per_node="all"), "crash": crash | {"min_ready": 0}}
    run = SlurmRun(cluster, services=services).submit("-N2", *SMALL)

    def count_restarts() -> int:
        return sum(service["restarts"] for service in run.status().get("services", ()))

    run.wait(f"{RESTARTS} restarts", lambda: count_restarts() >= RESTARTS)
    for _ in range(3):
        before = run.wait("a controller", lambda: run.status().get("controller_pid"))
        run.kill("node1", before)
        run.wait("the next controller", lambda before=before: run.status()["controller_pid"] not in (0, before))
    run.wait("both nodes back", lambda: all(node["state"] == "joined" for node in run.status()["nodes"]))
    assert count_steps(cluster, run) == 1
    verdict = run.end()
    assert verdict["controller_starts"] == 4
    assert verdict["services"]["crash"]["restarts"] >= RESTARTS
    assert verdict["clean"] == "true"
    assert_nothing_left(cluster, run.run_dir)


def test_slurms_daemons_may_stop_and_the_run_goes_on_and_ends(cluster: Cluster) -> None:
    run = SlurmRun(cluster, services={"web": server_service(per_node="all")}).submit("-N2", *SMALL).wait_running()
    pids = {item["id"]: item["host_pid"] for item in run.status()["replicas"]}
    cluster.slurmd("kill", "node2")
    cluster.slurmd("start", "node2")
    cluster.slurmctld("stop")
    assert {item["id"]: item["host_pid"] for item in run.status()["replicas"]} == pids
    restart(run, "web")
    (stub,) = run.find_role("node1", "stub")
    run.kill("node1", stub, "TERM")
    verdict = run.wait_verdict()
    assert (verdict["ended_by"], verdict["exit_code"]) == ("signal", 143)
    assert verdict["clean"] == "true", verdict
    assert_nothing_left(cluster, run.run_dir)
