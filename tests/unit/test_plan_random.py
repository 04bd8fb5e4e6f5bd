"""What holds for every plan, over random grants and manifests with a fixed seed."""

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from retinue.allocation.records import Allocation, Node
from retinue.errors import PlanError
from retinue.manifest.schema import Manifest
from retinue.plan.again import place_again
from retinue.plan.build import build_plan
from retinue.plan.records import Plan, ReplicaPlan


def random_allocation(chance: random.Random) -> Allocation:
    nodes = tuple(
        Node(
            name=f"n{k:02}",
            cpus=chance.choice([4, 8, 16]),
            memory_mib=chance.choice([0, 4096, 8192]),
            gpus=chance.choice([0, 2, 4, 8]),
        )
        for k in range(chance.randint(2, 6))
    )
    return Allocation(nodes=nodes, batch_host=nodes[0].name)


def random_manifest(chance: random.Random, node_count: int) -> Manifest:
    nodes: dict[str, Any] = {}
    if chance.random() < 0.7:
        nodes = {"train": {"count": chance.randint(1, node_count - 1)}, "env": {"count": "rest"}}
    groups = [*nodes, "all"]
    services: dict[str, Any] = {}
    for k in range(chance.randint(1, 5)):
        place: dict[str, Any] = {"gpus": chance.choice([0, 0, 1, 2, 4]), "strategy": chance.choice(["spread", "pack"])}
        place |= chance.choice([{}, {}, {"cpus": chance.randint(1, 4)}, {"memory": f"{chance.randint(1, 2048)}MiB"}])
        place |= chance.choice([{}, {}, {"share_gpus": "true"}])
        service: dict[str, Any] = {"command": ["x", "{node}"], "place": place}
        if chance.random() < 0.3:
            service["per_node"] = chance.choice(groups)
        else:
            service["replicas"] = chance.randint(1, 4)
            place["on"] = chance.choice(groups)
        service["depends_on"] = [name for name in services if chance.random() < 0.3]
        services[f"s{k}"] = service
    return Manifest.model_validate({"retinue": 1, "run": {"name": "r"}, "nodes": nodes, "services": services})


def random_plans(seed: int, count: int) -> list[tuple[Manifest, Plan]]:
    chance = random.Random(seed)
    found: list[tuple[Manifest, Plan]] = []
    while len(found) < count:
        allocation = random_allocation(chance)
        manifest = random_manifest(chance, len(allocation.nodes))
        # A random wish that does not fit is no plan; the refusals have their own file.
        with suppress(PlanError):
            found.append((manifest, build_plan(manifest, allocation, (), "/s", "/r", "/r/a")))
    return found


PLANS = random_plans(seed=11, count=300)


def check_devices(plan: Plan, replicas: list[ReplicaPlan]) -> None:
    """No device twice, but for replicas that all share; nothing beyond what a node has."""
    nodes = {node.name: node for node in plan.allocation.nodes}
    holders: dict[tuple[str, int], list[bool]] = {}
    cpus: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for place in replicas:
        assert len(set(place.gpus)) == len(place.gpus)
        cpus[place.node] += place.cpus
        memory[place.node] += place.memory_mib
        for device in place.gpus:
            assert 0 <= device < nodes[place.node].gpus
            holders.setdefault((place.node, device), []).append(place.shares_gpus)
    assert all(len(shares) == 1 or all(shares) for shares in holders.values())
    assert all(cpus[name] <= node.cpus for name, node in nodes.items())
    assert all(memory[name] <= node.memory_mib for name, node in nodes.items() if node.memory_mib)


def test_no_plan_gives_anything_away_twice() -> None:
    for _, plan in PLANS:
        check_devices(plan, list(plan.replicas))


def test_every_replica_is_on_a_node_of_its_group_with_what_it_asked_for() -> None:
    for manifest, plan in PLANS:
        groups = {group.name: group.nodes for group in plan.groups}
        for place in plan.replicas:
            service = manifest.services[place.service]
            assert place.group == (service.per_node or service.place.on or "all")
            assert place.node in groups[place.group]
            assert len(place.gpus) == service.place.gpus
            assert place.launch.gpus == place.gpus
            assert place.launch.argv == ("x", place.node)
            assert place.why


def test_per_node_is_exactly_one_on_every_node() -> None:
    for manifest, plan in PLANS:
        groups = {group.name: group.nodes for group in plan.groups}
        for name, service in manifest.services.items():
            places = tuple(place.node for place in plan.replicas if place.service == name)
            if service.per_node:
                assert places == groups[service.per_node]
            else:
                assert len(places) == service.replicas


def test_no_service_is_in_a_lane_before_what_it_waits_for() -> None:
    for manifest, plan in PLANS:
        lane = {service.name: service.start_lane for service in plan.services}
        assert {name: number for number, names in enumerate(plan.start_lanes) for name in names} == lane
        for name, service in manifest.services.items():
            assert all(lane[other] < lane[name] for other in service.depends_on)


def test_the_same_question_gets_the_same_plan() -> None:
    for manifest, plan in PLANS[:50]:
        assert build_plan(manifest, plan.allocation, (), "/s", "/r", "/r/a") == plan


def test_losing_nodes_one_after_the_other_never_picks_a_lost_one_or_gives_a_device_twice() -> None:
    chance = random.Random(5)
    moved = refused = 0
    for _, plan in PLANS:
        current = {place.id: place for place in plan.replicas}
        lost: set[str] = set()
        for node in chance.sample(plan.groups[-1].nodes, len(plan.groups[-1].nodes)):
            lost.add(node)
            for place in [place for place in current.values() if place.node == node]:
                del current[place.id]
                found = place_again(plan, place.id, frozenset(lost), tuple(current.values()))
                if isinstance(found, str):
                    refused += 1
                    continue
                moved += 1
                assert found.node not in lost
                assert found.node in next(group.nodes for group in plan.groups if group.name == place.group)
                assert found.launch.argv == ("x", found.node)
                assert found.launch.gpus == found.gpus
                current[found.id] = found
            check_devices(plan, list(current.values()))
    assert moved > 300
    assert refused > 300


@pytest.mark.parametrize("seed", [1, 2])
def test_other_seeds_give_nothing_away_twice_either(seed: int) -> None:
    for _, plan in random_plans(seed, 40):
        check_devices(plan, list(plan.replicas))
