"""The environment of a batch script as Slurm 22.05 and 25.11 really set it, and what people's jobs add."""

import pytest

from retinue.allocation.described import parse_description
from retinue.allocation.records import Node
from retinue.allocation.slurm_env import parse_gpu_count, parse_repeated, parse_slurm_environment
from retinue.errors import AllocationError

RECORDED_22_05 = """\
SLURM_CLUSTER_NAME=testbed
SLURM_CONF=/etc/slurm/slurm.conf
SLURM_CPUS_ON_NODE=1
SLURM_GTIDS=0
SLURM_JOBID=3
SLURM_JOB_CPUS_PER_NODE=1(x3)
SLURM_JOB_GID=1001
SLURM_JOB_ID=3
SLURM_JOB_NAME=demo
SLURM_JOB_NODELIST=node[1-3]
SLURM_JOB_NUM_NODES=3
SLURM_JOB_PARTITION=main
SLURM_JOB_UID=1001
SLURM_JOB_USER=rl
SLURM_LOCALID=0
SLURM_NNODES=3
SLURM_NODEID=0
SLURM_NODELIST=node[1-3]
SLURM_NODE_ALIASES=(null)
SLURM_PRIO_PROCESS=0
SLURM_PROCID=0
SLURM_SUBMIT_DIR=/home/user
SLURM_SUBMIT_HOST=login
SLURM_TASKS_PER_NODE=1(x3)
SLURM_TASK_PID=31808
SLURM_TOPOLOGY_ADDR=node1
SLURM_TOPOLOGY_ADDR_PATTERN=node
SLURM_WORKING_CLUSTER=testbed:login:6817:9728:109
"""

RECORDED_25_11 = """\
SLURM_CLUSTER_NAME=testbed25
SLURM_CONF=/etc/slurm/slurm.conf
SLURM_CPUS_ON_NODE=1
SLURM_GTIDS=0
SLURM_JOBID=1
SLURM_JOB_CPUS_PER_NODE=1(x3)
SLURM_JOB_END_TIME=1796053285
SLURM_JOB_GID=1001
SLURM_JOB_ID=1
SLURM_JOB_NAME=demo
SLURM_JOB_NODELIST=node[1-3]
SLURM_JOB_NUM_NODES=3
SLURM_JOB_PARTITION=main
SLURM_JOB_START_TIME=1796052685
SLURM_JOB_UID=1001
SLURM_JOB_USER=rl
SLURM_LOCALID=0
SLURM_NNODES=3
SLURM_NODEID=0
SLURM_NODELIST=node[1-3]
SLURM_OOM_KILL_STEP=0
SLURM_PRIO_PROCESS=0
SLURM_PROCID=0
SLURM_SUBMIT_DIR=/home/user
SLURM_SUBMIT_HOST=login
SLURM_TASKS_PER_NODE=1(x3)
SLURM_TASK_PID=7739
SLURM_TOPOLOGY_ADDR=node1
SLURM_TOPOLOGY_ADDR_PATTERN=node
"""

THREE = tuple(Node(name=f"node{k}", cpus=1, memory_mib=0) for k in (1, 2, 3))


def read(recorded: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in recorded.splitlines())


def job(**more: str) -> dict[str, str]:
    """A job of two nodes with 8 CPUs each."""
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_CPUS_PER_NODE": "8(x2)", **more}


def gpus(env: dict[str, str]) -> tuple[int, ...]:
    return tuple(node.gpus for node in parse_slurm_environment(env).nodes)


def test_22_05_says_everything_but_the_end() -> None:
    allocation = parse_slurm_environment(read(RECORDED_22_05))
    assert allocation.nodes == THREE
    assert (allocation.source, allocation.job_id, allocation.batch_host) == ("slurm", "3", "node1")
    assert allocation.end_utc is None
    assert allocation.restart_count == 0


def test_25_11_says_the_end_too() -> None:
    allocation = parse_slurm_environment(read(RECORDED_25_11))
    assert allocation.nodes == THREE
    assert allocation.job_id == "1"
    assert allocation.end_utc == 1796053285.0


@pytest.mark.parametrize("end", ["0", "4294967295", "4294967294"])
def test_a_job_without_a_time_limit_has_no_end(end: str) -> None:
    assert parse_slurm_environment(job(SLURM_JOB_END_TIME=end)).end_utc is None


def test_a_requeued_job_is_a_later_attempt() -> None:
    assert parse_slurm_environment(job(SLURM_RESTART_COUNT="2")).restart_count == 2


def test_cpus_differ_from_node_to_node() -> None:
    env = job(SLURM_JOB_NODELIST="n[1-4]", SLURM_JOB_CPUS_PER_NODE="1(x3),4")
    assert [node.cpus for node in parse_slurm_environment(env).nodes] == [1, 1, 1, 4]


@pytest.mark.parametrize(
    ("more", "memory"),
    [
        ({}, 0),
        ({"SLURM_MEM_PER_NODE": "65536"}, 65536),
        ({"SLURM_MEM_PER_NODE": "64G"}, 65536),
        ({"SLURM_MEM_PER_NODE": "0"}, 0),
        ({"SLURM_MEM_PER_CPU": "2048"}, 16384),
        ({"SLURM_MEM_PER_GPU": "1000", "SLURM_GPUS_ON_NODE": "4"}, 4000),
    ],
)
def test_memory_comes_from_whichever_was_asked_for(more: dict[str, str], memory: int) -> None:
    assert parse_slurm_environment(job(**more)).nodes[1].memory_mib == memory


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, (0, 0)),
        ({"SLURM_GPUS_PER_NODE": "4"}, (4, 4)),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, (4, 4)),
        ({"SLURM_GPUS_PER_NODE": "a100:2,h100:2"}, (4, 4)),
        ({"SLURM_GPUS_ON_NODE": "8"}, (8, 8)),
        ({"SLURM_JOB_GPUS": "0,1,2,3"}, (4, 4)),
        ({"SLURM_JOB_GPUS": "0-2,7"}, (4, 4)),
        ({"SLURM_GPUS_ON_NODE": "3", "SLURM_JOB_GPUS": "0,1,2,3"}, (3, 3)),
        ({"SLURM_GPUS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "8", "SLURM_GPUS": "16"}, (8, 8)),
        ({"SLURM_GPUS": "h100:6", "SLURM_GPUS_ON_NODE": "4"}, (4, 2)),
    ],
)
def test_gpus_are_counted_however_they_were_asked_for(more: dict[str, str], expected: tuple[int, ...]) -> None:
    assert gpus(job(**more)) == expected


def test_a_total_that_does_not_divide_is_not_guessed_at() -> None:
    env = job(SLURM_JOB_NODELIST="n[1-3]", SLURM_JOB_CPUS_PER_NODE="8(x3)", SLURM_GPUS="8", SLURM_GPUS_ON_NODE="3")
    with pytest.raises(AllocationError, match="--gpus-per-node"):
        parse_slurm_environment(env)


def test_a_shell_on_the_second_node_is_the_batch_host_and_stands_first() -> None:
    allocation = parse_slurm_environment(job(SLURMD_NODENAME="n2", SLURM_JOB_CPUS_PER_NODE="8,16"))
    assert allocation.batch_host == "n2"
    assert [(node.name, node.cpus) for node in allocation.nodes] == [("n2", 16), ("n1", 8)]


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE"])
@pytest.mark.parametrize("recorded", [RECORDED_22_05, RECORDED_25_11])
def test_a_missing_variable_is_named(name: str, recorded: str) -> None:
    env = read(recorded)
    del env[name]
    with pytest.raises(AllocationError, match=f"{name} not set"):
        parse_slurm_environment(env)


def test_all_missing_variables_are_named_at_once() -> None:
    with pytest.raises(AllocationError, match="SLURM_JOB_NODELIST, SLURM_JOB_CPUS_PER_NODE not set"):
        parse_slurm_environment({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": ""})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"SLURM_HET_SIZE": "2"}, "cannot use a heterogeneous job: SLURM_HET_SIZE is 2"),
        ({"SLURM_JOB_NODELIST": "n[2-1]"}, "runs backwards"),
        ({"SLURM_JOB_NODELIST": "n1,n1"}, "names 'n1' twice"),
        ({"SLURM_JOB_CPUS_PER_NODE": "8(x3)"}, "it speaks of 3 nodes, the job has 2"),
        ({"SLURM_JOB_CPUS_PER_NODE": "many"}, "'many' is not COUNT"),
        ({"SLURM_JOB_NUM_NODES": "3"}, "SLURM_JOB_NUM_NODES is 3, SLURM_JOB_NODELIST"),
        ({"SLURM_MEM_PER_NODE": "lots"}, "cannot read SLURM_MEM_PER_NODE='lots'"),
        ({"SLURM_GPUS_PER_NODE": "a100"}, "cannot read SLURM_GPUS_PER_NODE='a100'"),
        ({"SLURM_GPUS_ON_NODE": "-1"}, "cannot read SLURM_GPUS_ON_NODE='-1'"),
        ({"SLURM_JOB_END_TIME": "soon"}, "cannot read SLURM_JOB_END_TIME='soon'"),
        ({"SLURM_RESTART_COUNT": "x"}, "cannot read SLURM_RESTART_COUNT='x'"),
        ({"SLURMD_NODENAME": "n9"}, "this shell is on 'n9'"),
        ({"SLURM_GPUS": "2", "SLURM_GPUS_ON_NODE": "4"}, "cannot tell which node has which GPUs"),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(AllocationError) as caught:
        parse_slurm_environment(job(**more))
    assert words in str(caught.value)


def test_a_heterogeneous_size_of_one_is_an_ordinary_job() -> None:
    assert len(parse_slurm_environment(job(SLURM_HET_SIZE="1")).nodes) == 2


@pytest.mark.parametrize("text", ["", "1(x", "1x3", "1(x3)4", "-1", "1,,2"])
def test_repeated_counts_are_read_exactly_or_not_at_all(text: str) -> None:
    with pytest.raises(ValueError, match="is not COUNT"):
        parse_repeated(text)


@pytest.mark.parametrize(("text", "count"), [("4", 4), ("gpu:a100:4", 4), ("gpu:2", 2), ("nvidia_a100-sxm:3", 3)])
def test_a_gpu_count_may_carry_its_type(text: str, count: int) -> None:
    assert parse_gpu_count(text) == count


def test_a_described_allocation_has_equal_nodes() -> None:
    allocation = parse_description("n[01-04]", gpus=8, cpus=64)
    assert allocation.source == "described"
    assert allocation.batch_host == "n01"
    assert allocation.nodes[3] == Node(name="n04", cpus=64, memory_mib=0, gpus=8)


@pytest.mark.parametrize(
    ("nodes", "counts", "words"),
    [
        ("n[01-", {}, "'[' without ']'"),
        ("n1,n1", {}, "twice"),
        ("n1", {"gpus": -1}, "--gpus is -1"),
        ("n1", {"cpus": 0}, "--cpus is 0"),
        ("n1", {"memory_mib": -5}, "--memory is -5"),
    ],
)
def test_a_description_nobody_can_have_is_refused(nodes: str, counts: dict[str, int], words: str) -> None:
    with pytest.raises(AllocationError) as caught:
        parse_description(nodes, **counts)
    assert words in str(caught.value)
