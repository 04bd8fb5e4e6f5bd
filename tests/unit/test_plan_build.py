"""A plan from a manifest and a grant: groups, launches, policies, lanes, the trainer."""

from typing import Any

import pytest

from retinue.allocation.described import parse_description
from retinue.manifest.schema import Manifest
from retinue.plan.build import build_plan
from retinue.plan.records import Dependency, Egress, Plan, ReplicaPlan
from retinue.terms.launch import ProbeKind, ProbeSpec, StopSpec
from retinue.terms.record import from_json, to_json
from retinue.terms.replica import OnExhausted

SERVER = ["serve", "--port", "{port}"]


def plan_for(services: dict[str, Any], nodes: str = "n[1-4]", argv: tuple[str, ...] = (), **more: Any) -> Plan:
    gpus, cpus, memory_mib = more.pop("gpus", 4), more.pop("cpus", 16), more.pop("memory_mib", 65536)
    manifest = Manifest.model_validate({"retinue": 1, "run": {"name": "demo"}, "services": services, **more})
    allocation = parse_description(nodes, gpus=gpus, cpus=cpus, memory_mib=memory_mib)
    return build_plan(manifest, allocation, argv, "/start", "/runs/demo", "/runs/demo/attempt-0")


def only(plan: Plan) -> ReplicaPlan:
    (place,) = plan.replicas
    return place


def nodes_of(plan: Plan, service: str) -> list[str]:
    return [place.node for place in plan.replicas if place.service == service]


SPLIT = {"train": {"count": 2}, "env": {"count": "rest"}}


def test_groups_are_cut_in_order_and_all_is_every_node() -> None:
    plan = plan_for({"a": {"command": ["x"]}}, nodes="n[1-5]", nodes_=None) if False else None
    plan = plan_for_groups({"train": {"count": 1}, "env": {"count": "rest"}, "last": {"count": 2}}, "n[1-5]")
    assert [(group.name, group.nodes) for group in plan.groups] == [
        ("train", ("n1",)),
        ("env", ("n2", "n3")),
        ("last", ("n4", "n5")),
        ("all", ("n1", "n2", "n3", "n4", "n5")),
    ]


def plan_for_groups(groups: dict[str, Any], nodes: str) -> Plan:
    manifest = Manifest.model_validate(
        {"retinue": 1, "run": {"name": "demo"}, "nodes": groups, "services": {"a": {"command": ["x"]}}}
    )
    return build_plan(manifest, parse_description(nodes), (), "/s", "/r", "/r/a")
