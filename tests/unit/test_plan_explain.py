"""The plan as people read it, whole."""

from typing import Any

from retinue.allocation.described import parse_description
from retinue.allocation.records import Allocation, Node
from retinue.manifest.schema import Manifest
from retinue.plan.build import build_plan
from retinue.plan.explain import render_plan

SERVICES: dict[str, Any] = {
    "judge": {
        "command": ["s", "{port}"],
        "kind": "judge",
        "replicas": 2,
        "place": {"on": "env", "gpus": 4},
        "min_ready": 2,
    },
    "user": {
        "command": ["u", "{port}"],
        "kind": "user-simulator",
        "protocol": "tcp",
        "depends_on": {"judge": {"condition": "ready", "required": "false"}},
        "egress": {"udp": "none", "allow": ["10.0.0.0/8:443"]},
    },
    "box": {"command": ["b"], "kind": "sandbox", "per_node": "env"},
    "free": {"command": ["f"], "egress": "off"},
}
EXPECTED = """\
run demo: described, 4 nodes, 16 GPUs, 64 CPUs
group train: 2 x n[01-02]
group env: 2 x n[03-04]
group all: 4 x n[01-04]
trainer: group train, stop TERM, then KILL after 60 s: srun -w n[01-02] train.py
service judge (judge), 2 replicas, ready with 2
  judge/0 on n03 GPU 0,1,2,3: most free in group env: 4 GPUs
  judge/1 on n04 GPU 0,1,2,3: most free in group env: 4 GPUs
service user (user-simulator), 1 replica, ready with 1, TCP: its address may change, after judge ready (not required)
  user/0 on n01: fewest replicas of user in group all (0 before this one)
service box (sandbox), 2 replicas, one per node, ready with 1
  box/0 on n03: one on every node of group env
  box/1 on n04: one on every node of group env
service free (command), 1 replica, ready with 1
  free/0 on n01: fewest replicas of free in group all (0 before this one)
start: judge, box, free -> user
stop: user -> judge, box, free
egress, by each node's guard:
  judge: the allocation only; udp none
  user: the allocation and 10.0.0.0/8:443; udp none
  box: exempt, its workloads have no network at all
  free: off, it reaches whatever its node reaches
  trainer: off, it reaches whatever its node reaches"""


def render(allocation: Allocation, argv: tuple[str, ...] = (), **keys: Any) -> list[str]:
    manifest = Manifest.model_validate({"retinue": 1, "run": {"name": "demo"}, **keys})
    return render_plan(build_plan(manifest, allocation, argv, "/start", "/run", "/run/attempt-0"))


def test_everything_a_reader_asks_is_in_the_text() -> None:
    lines = render(
        parse_description("n[01-04]", gpus=4, cpus=16),
        ("srun", "-w", "{train.nodelist}", "train.py"),
        services=SERVICES,
        nodes={"train": {"count": 2}, "env": {"count": "rest"}},
        trainer={"on": "train"},
    )
    assert lines == EXPECTED.splitlines()


def test_a_weaker_rung_and_warnings_are_said_aloud() -> None:
    allocation = Allocation(nodes=(Node(name="n1", cpus=2, memory_mib=1, gpus=1),), source="slurm", job_id="42")
    services = {"judge": {"command": ["x"], "place": {"gpus": 1}}}
    lines = render(allocation, ("train",), services=services, node={"namespace": "off"})
    assert lines[0] == "run demo: Slurm job 42, 1 node, 1 GPU, 2 CPUs"
    assert any(line.startswith("node namespace: off") for line in lines)
    assert lines[-1].startswith("warning: judge has devices of nodes where the trainer runs, group all (n1 GPU 0)")


def test_without_a_trainer_the_text_says_so() -> None:
    lines = render(parse_description("n1"), services={"a": {"command": ["x"]}})
    assert "trainer: none given; group all" in lines
    assert not any(line.startswith("node namespace") for line in lines)
    assert lines.count("egress, by each node's guard:") == 1
