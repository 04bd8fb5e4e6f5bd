"""What does not fit is refused in one report that says what was free."""

from typing import Any

import pytest

from retinue.allocation.described import parse_description
from retinue.errors import PlanError
from retinue.manifest.schema import Manifest
from retinue.plan.build import build_plan

SPLIT = {"train": {"count": 2}, "env": {"count": "rest"}}


def refusal(
    services: dict[str, Any], grant: str = "n[01-04]", gpus: int = 4, memory_mib: int = 65536, **keys: Any
) -> list[str]:
    manifest = Manifest.model_validate({"retinue": 1, "run": {"name": "demo"}, "services": services, **keys})
    allocation = parse_description(grant, gpus=gpus, cpus=16, memory_mib=memory_mib)
    with pytest.raises(PlanError) as caught:
        build_plan(manifest, allocation, ("train",), "/start", "/run", "/run/attempt-0")
    assert caught.value.exit_code == 4
    return caught.value.problems


def service(**keys: Any) -> dict[str, Any]:
    return {"command": ["x"], **keys}


def test_the_replica_that_does_not_fit_is_named_with_what_was_free() -> None:
    services = {
        "small": service(place={"on": "env", "gpus": 2}),
        "judge": service(replicas=2, place={"on": "env", "gpus": 4}),
    }
    assert refusal(services, nodes=SPLIT) == ["judge/1: needs 4 GPUs on one node of group env; free: n03 2, n04 0"]


def test_every_service_that_does_not_fit_is_listed_once() -> None:
    services = {
        "a": service(replicas=9, place={"gpus": 8}),
        "fits": service(place={"gpus": 1}),
        "b": service(replicas=3, place={"cpus": 17}),
        "c": service(place={"memory": "65GiB"}),
        "d": service(place={"gpus": 1, "cpus": 20}),
        "e": service(per_node="all", place={"gpus": 4}),
    }
    assert refusal(services, grant="n[1-2]") == [
        "a/0: needs 8 GPUs on one node of group all; free: n1 4, n2 4",
        "b/0: needs 17 CPUs on one node of group all; free: n1 16, n2 16",
        "c/0: needs 66560 MiB on one node of group all; free: n1 65536 MiB, n2 65536 MiB",
        "d/0: needs 1 GPU, 20 CPUs on one node of group all; free: n1 3 GPUs and 16 CPUs, n2 4 GPUs and 16 CPUs",
        "e/0: needs 4 GPUs on node n1 (per_node: all); free: n1 3",
    ]


def test_a_long_list_of_nodes_is_summed_up() -> None:
    (line,) = refusal({"a": service(place={"gpus": 5})}, grant="n[1-100]")
    assert line.endswith("n11 4, n12 4, and 88 more nodes")


def test_memory_nobody_knows_does_not_refuse() -> None:
    manifest = Manifest.model_validate(
        {"retinue": 1, "run": {"name": "d"}, "services": {"a": service(place={"memory": "1TiB"})}}
    )
    plan = build_plan(manifest, parse_description("n1"), (), "/s", "/r", "/r/a")
    assert plan.warnings == ("a: memory is asked for, but nobody knows what the nodes have; it is not counted there",)


@pytest.mark.parametrize(
    ("fields", "port"),
    [
        ({"command": ["x", "--port", "8000"]}, "8000"),
        ({"command": ["x", "--port=8000"]}, "8000"),
        ({"command": ["x"], "probes": {"readiness": {"tcp": 8011}}}, "8011"),
        ({"command": ["x"], "probes": {"liveness": {"http": {"path": "/", "port": 8012}}}}, "8012"),
        ({"command": ["x", "--port", "{port}"], "probes": {"liveness": {"http": {"path": "/", "port": 8012}}}}, ""),
        ({"command": ["x", "--port", "8000"], "probes": {"readiness": {"tcp": True}}}, ""),
        ({"command": ["x", "--portal", "8000", "--report=1"]}, ""),
        ({"command": ["x"], "probes": {"readiness": {"exec": ["true"]}}}, ""),
    ],
)
def test_a_service_whose_port_nobody_is_told_of_is_pointed_out(fields: dict[str, Any], port: str) -> None:
    manifest = Manifest.model_validate({"retinue": 1, "run": {"name": "d"}, "services": {"a": fields}})
    plan = build_plan(manifest, parse_description("n1"), (), "/s", "/r", "/r/a")
    assert [f"a listens on the fixed port {port}, so it gets no URL" in line for line in plan.warnings] == [
        True
    ] * bool(port)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ({"train": {"count": 5}}, "nodes: needs 5 nodes (train 5); the allocation has 4"),
        (
            {"train": {"count": 4}, "env": {"count": "rest"}},
            "nodes: needs 5 nodes (train 4, env at least 1); the allocation has 4",
        ),
        ({"a": {"count": 3}, "b": {"count": 2}}, "nodes: needs 5 nodes (a 3, b 2); the allocation has 4"),
        ({"a": {"count": "rest"}, "b": {"count": "rest"}}, "nodes: a and b both take the rest; one group can"),
    ],
)
def test_groups_that_do_not_fit_are_the_only_finding(nodes: dict[str, Any], problem: str) -> None:
    assert refusal({"a": service(place={"on": next(iter(nodes)), "gpus": 99})}, nodes=nodes) == [problem]


@pytest.mark.parametrize(
    ("services", "keys", "problem"),
    [
        ({"a": service(place={"on": "evn"})}, {"nodes": SPLIT}, "a: no group of nodes 'evn'; there is train, env, all"),
        ({"a": service(per_node="x")}, {}, "a: no group of nodes 'x'; there is all"),
        ({"a": service()}, {"trainer": {"on": "t"}}, "trainer.on: no group of nodes 't'; there is all"),
        ({"a": service(depends_on=["b"])}, {}, "a: depends on 'b', which is no service"),
        (
            {"a": service(depends_on=["b"]), "b": service(depends_on=["a"]), "c": service()},
            {},
            "a, b: wait for each other in a circle",
        ),
        (
            {"a": service(per_node="all", min_ready=5)},
            {},
            "a: min_ready is 5, but group all gives it 4 replicas",
        ),
        ({"a": service(replicas=2, min_ready=3)}, {}, "a: min_ready is 3, but it has 2 replicas"),
    ],
)
def test_a_plan_nobody_can_carry_out_is_refused(services: dict[str, Any], keys: dict[str, Any], problem: str) -> None:
    assert refusal(services, **keys) == [problem]


@pytest.mark.parametrize("where", ["command", "env", "probe"])
def test_a_placeholder_nobody_can_fill_is_a_finding_wherever_it_stands(where: str) -> None:
    services = {
        "a": {
            "command": ["x", "{prot}" if where == "command" else "y"],
            "env": {"E": "{prot}" if where == "env" else "y"},
            "probes": {"readiness": {"exec": ["{prot}" if where == "probe" else "y"]}},
        },
        "b": service(place={"gpus": 9}),
    }
    first, second = refusal(services)
    assert first.startswith("a: cannot fill {prot}: there is {all.count}, ")
    assert "{port}" in first
    assert second.startswith("b/0: needs 9 GPUs")
