"""A node goes silent, a link is cut, the batch host burns down: who goes on, who ends what, and what is said of it."""

from typing import Any

from support.cluster import Cluster, wait_for
from support.cluster_clean import assert_nothing_left, find_left
from support.slurm_run import SMALL, SlurmRun, server_service

GROUPS = {"train": {"count": 1}, "env": {"count": "rest"}}
SERVICES = {"web": server_service(per_node="all"), "pool": server_service(replicas=2, place={"on": "env"})}
GRACE_S = 4
"""orphan_grace; beside it a node needs 10 s to see that it is alone, and 10 s for Slurm's silence."""


def build_run(cluster: Cluster, name: str, **manifest: Any) -> SlurmRun:
    run = SlurmRun(cluster, name, **({"nodes": GROUPS, "trainer": {"on": "train"}, "services": SERVICES} | manifest))
    text = run.manifest.read_text()
    run.manifest.write_text(text.replace(f"name: {name}", f"name: {name}\n  orphan_grace: {GRACE_S}s"))
    return run


def wait_lost(run: SlurmRun, *nodes: str) -> None:
    run.wait(f"{nodes} to be lost", lambda: all(run.node(node)["state"] == "lost" for node in nodes))
    for node in nodes:
        assert "nothing heard for 10 s" in run.node(node)["cause"], run.node(node)


def find_clean(verdict: dict[str, Any]) -> dict[str, str]:
    return {name: node["clean"] for name, node in verdict["nodes"].items()}


def test_a_dead_node_and_a_cut_one_are_lost_and_the_rest_goes_on(cluster: Cluster) -> None:
    run = build_run(cluster, "survivor").submit("-N4", "--no-kill", *SMALL)
    plain = build_run(cluster, "plain").submit("-N3", "-wnode[1-3]", "--no-requeue", *SMALL)
    run.wait_running()
    plain.wait_running()
    cluster.kill_node("node3")
    cluster.cut("node4")
    wait_lost(run, "node3", "node4")
    run.wait("the pool on the node that is left", lambda: run.ready("pool") == 2)
    assert {item["node"] for item in run.status()["replicas"] if item["id"].startswith("pool")} == {"node2"}
    assert all(item["phase"] == "failed" for item in run.replicas("node4"))
    assert run.status()["phase"] == "running"

    # Alone, the cut node ends itself, and nobody's job.
    wait_for("node4 to be empty", lambda: not find_left(cluster, run.run_dir, ["node4"]))
    assert cluster.job(run.job)["JobState"] == "RUNNING"
    # A job that did not ask to survive it is ended by Slurm itself.
    cluster.wait_job(plain.job, "NODE_FAIL")
    cluster.heal("node4")
    verdict = run.end()
    assert (verdict["ended_by"], verdict["exit_code"]) == ("signal", 143)
    assert find_clean(verdict) == {"node1": "true", "node2": "true", "node3": "unknown", "node4": "unknown"}
    assert_nothing_left(cluster, run.run_dir, without=["node3"])


def test_a_cut_node_that_comes_back_is_refused_and_one_with_the_trainer_ends_the_run(cluster: Cluster) -> None:
    run = build_run(cluster, "survivor").submit("-N2", "--no-kill", *SMALL)
    everywhere = {"web": server_service(per_node="all")}
    ended = build_run(cluster, "ended", nodes={"both": {"count": 2}}, trainer={"on": "both"}, services=everywhere)
    ended.submit("-N2", *SMALL)
    run.wait_running()
    ended.wait_running()
    cluster.cut("node2")
    wait_lost(run, "node2")
    cluster.heal("node2")
    verdict = ended.wait_over()
    assert (verdict["ended_by"], verdict["exit_code"]) == ("node_lost", 5), verdict
    assert "node2" in verdict["cause"]
    wait_for("node2 to be empty", lambda: not find_left(cluster, run.run_dir, ["node2"]))
    assert run.node("node2")["state"] in ("lost", "ended")
    assert run.status()["phase"] == "running"
    run.end()
    assert_nothing_left(cluster, run.run_dir)


def test_a_lost_batch_host_is_noticed_by_the_others_which_cancel_the_job(cluster: Cluster) -> None:
    run = build_run(cluster, "headless").submit("-N4", "--no-kill", *SMALL).wait_running()
    cluster.kill_node("node1")
    # Sooner than Slurm itself knows: none of the others has a controller.
    job = cluster.wait_state(run.job, "COMPLETING", "CANCELLED")
    assert job["NodeList"] == "node[1-4]"
    assert_nothing_left(cluster, run.run_dir, without=["node1"])
