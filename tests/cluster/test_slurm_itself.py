"""The throwaway Slurm is what the other cluster tests take it for: real, several hosts, an ordinary user."""

import pytest

from support.cluster import Cluster, Refused, wait_for

WAIT_FOR_EVER = "exec sleep 600"


def test_every_node_answers_one_step_with_its_own_hostname(cluster: Cluster) -> None:
    count = str(len(cluster.nodes))
    assert sorted(cluster.call("srun", "-N", count, "hostname").split()) == cluster.nodes


def test_an_ordinary_user_submits_and_the_batch_sees_what_the_facts_say(cluster: Cluster) -> None:
    job = cluster.sbatch("-N2", "--gres=gpu:2", script="id -u; env")
    assert cluster.wait_job(job)["JobState"] == "COMPLETED"
    uid, *lines = cluster.output(job).splitlines()
    assert int(uid) >= 1000
    env = dict(line.partition("=")[::2] for line in lines)
    assert env["SLURM_JOB_ID"] == job
    assert env["SLURM_JOB_NODELIST"] == "node[1-2]"
    assert env["SLURM_JOB_NUM_NODES"] == "2"
    assert env["CUDA_VISIBLE_DEVICES"] == env["SLURM_JOB_GPUS"] == "0,1"
    # Slurm 22.05 tells nobody when the job ends; the deadline takes a query.
    assert "SLURM_JOB_END_TIME" not in env


def test_a_step_has_all_gpus_of_its_node(cluster: Cluster) -> None:
    said = cluster.call("srun", "-N2", "--ntasks-per-node=1", "--gres=gpu:4", "printenv", "CUDA_VISIBLE_DEVICES")
    assert said.split() == ["0,1,2,3"] * 2
    assert "Gres=gpu:4" in cluster.call("scontrol", "show", "node", "node1")


def test_the_first_step_takes_the_memory_and_a_second_one_waits_unless_it_asks_for_none(cluster: Cluster) -> None:
    second = 'srun --immediate=2 --overlap {} true && echo "second {} started"'
    steps = ["srun sleep 60 & first=$!", "until scontrol listpids $SLURM_JOB_ID.0 | grep -q ' 0 '; do :; done"]
    steps += [second.format("--mem=0", "--mem=0"), "srun --immediate=2 true || echo refused", "kill $first"]
    job = cluster.sbatch("-N1", "-n1", "--mem=1000", script="\n".join(steps))
    cluster.wait_job(job)
    assert "second --mem=0 started" in cluster.output(job)
    assert "refused" in cluster.output(job)


@pytest.mark.parametrize("suffix", ["", "-b"])
def test_nodes_reach_each_other_over_both_networks(cluster: Cluster, suffix: str) -> None:
    assert reaches(cluster, "node1", f"node2{suffix}")


def reaches(cluster: Cluster, host: str, name: str) -> bool:
    """A TCP connect to the slurmd that listens on every address of a node."""
    connect = f"import socket; socket.create_connection(({name!r}, 6818), 2)"
    return cluster.run_on(host, ["python3", "-c", connect]).code == 0


def test_a_blackholed_first_network_swallows_connects_while_slurm_goes_on(cluster: Cluster) -> None:
    cluster.blackhole("node2")
    connect = "import socket\ntry: socket.create_connection(('node2', 6818), 1)\nexcept TimeoutError: print('silence')"
    assert cluster.run_on("node1", ["python3", "-c", connect]).out == "silence\n"
    assert reaches(cluster, "node1", "node2-b")
    assert cluster.call("srun", "-w", "node2", "hostname") == "node2\n"
    cluster.heal("node2")
    assert reaches(cluster, "node1", "node2")


def test_a_hostname_can_mean_loopback_on_its_own_host_only(cluster: Cluster) -> None:
    cluster.loopback_name("node2")
    assert cluster.run_on("node2", ["getent", "hosts", "node2"]).out.split()[0] == "127.0.1.1"
    assert cluster.run_on("node1", ["getent", "hosts", "node2"]).out.split()[0] == "10.77.0.2"


def test_a_cut_node_lives_on_unheard(cluster: Cluster) -> None:
    cluster.cut("node3")
    assert not reaches(cluster, "node1", "node3")
    assert not reaches(cluster, "node1", "node3-b")
    assert cluster.run_on("node3", ["hostname"]).out == "node3\n"
    cluster.heal("node3")
    wait_for("node3 to be reached again", lambda: reaches(cluster, "node1", "node3"))


def test_a_killed_node_takes_everything_with_it_and_comes_back_empty_with_a_boot_of_its_own(cluster: Cluster) -> None:
    cluster.run_on("node4", ["touch", "/tmp/mine", "/dev/shm/mine"])
    cluster.sbatch("-w", "node4", script=WAIT_FOR_EVER)
    wait_for("the batch script", lambda: "sleep 600" in cluster.processes("node4").values())
    cluster.kill_node("node4")
    with pytest.raises(Refused, match="dead"):
        cluster.run_on("node4", ["true"])
    cluster.revive("node4")
    assert cluster.processes("node4") == {}
    for path in ("/tmp/mine", "/dev/shm/mine"):
        assert cluster.run_on("node4", ["ls", path]).code != 0
    assert uptime_s(cluster, "node4") < uptime_s(cluster, "node1")


def uptime_s(cluster: Cluster, host: str) -> float:
    return float(cluster.run_on(host, ["cat", "/proc/uptime"]).out.split()[0])


def test_a_step_survives_its_slurmd_and_a_job_its_slurmctld(cluster: Cluster) -> None:
    job = cluster.sbatch("-N1", "-w", "node1", script=WAIT_FOR_EVER)
    wait_for("the batch script", lambda: "sleep 600" in cluster.processes("node1").values())
    before = cluster.processes("node1")
    cluster.slurmd("kill", "node1")
    # Not "kill": what it did in its last 5 s would be forgotten, this job's start too.
    cluster.slurmctld("stop")
    assert cluster.processes("node1") == before
    cluster.slurmctld("start")
    cluster.slurmd("start", "node1")
    assert cluster.wait_state(job, "RUNNING")["NodeList"] == "node1"
    assert cluster.processes("node1") == before


def test_a_job_of_a_higher_partition_sends_a_lower_one_back_to_the_queue(cluster: Cluster) -> None:
    low = cluster.sbatch("--partition=low", "-w", "node1", "--exclusive", script=WAIT_FOR_EVER)
    cluster.wait_state(low, "RUNNING")
    high = cluster.sbatch("--partition=high", "-w", "node1", "--exclusive", script="exit 0")
    cluster.wait_job(high, "COMPLETED")
    assert cluster.job(low)["Restarts"] == "1"


def test_every_host_has_its_own_tmp_shm_and_processes_and_all_share_the_scratch(cluster: Cluster) -> None:
    for path in ("/tmp/mine", "/dev/shm/mine", "/var/tmp/mine"):
        cluster.run_on("node1", ["touch", path])
        assert cluster.run_on("node1", ["ls", path]).code == 0
        assert cluster.run_on("node2", ["ls", path]).code != 0
    (cluster.scratch / "seen").write_text("by all")
    assert cluster.run_on("node2", ["cat", str(cluster.scratch / "seen")]).out == "by all"
    assert cluster.processes("node1") == cluster.processes("node2") == {}


def test_a_setsid_child_outlives_its_job_under_linuxproc_only_and_is_seen_and_ended(cluster: Cluster) -> None:
    job = cluster.sbatch("-w", "node1", script="setsid nohup sleep 601 </dev/null >/dev/null 2>&1 &\nexit 0")
    cluster.wait_job(job, "COMPLETED")
    outlived = ["sleep 601"] if cluster.proctrack == "linuxproc" else []
    assert list(cluster.processes("node1").values()) == outlived
    cluster.restore()
    assert cluster.processes("node1") == {}


def test_another_user_is_another_user_and_root_is_not_to_be_had(cluster: Cluster) -> None:
    secret = cluster.scratch / "secret"
    secret.write_text("mine")
    secret.chmod(0o600)
    assert cluster.run_on("login", ["cat", str(secret)]).out == "mine"
    assert cluster.run_on("login", ["cat", str(secret)], user=cluster.other_user).code != 0
    assert cluster.run_on("node1", ["id", "-un"], user=cluster.other_user).out == "retinue-other\n"
    with pytest.raises(Refused):
        cluster.run_on("node1", ["id"], user="root")
    with pytest.raises(Refused, match="unknown verb"):
        cluster.ask("reboot")


def test_a_host_has_a_pid_namespace_in_which_a_user_can_make_his_own(cluster: Cluster) -> None:
    nested = ["unshare", "-Urpmf", "--map-current-user", "--kill-child=KILL", "--mount-proc", "ps", "-eo", "pid="]
    assert cluster.run_on("node1", nested).out.split() == ["1"]
