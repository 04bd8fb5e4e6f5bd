"""(Manifest, Allocation) -> Plan: who runs where, in which order, and why.

Finds everything that does not fit before it refuses; starts nothing, asks nothing.
"""

import re
from collections.abc import Mapping, Sequence

from retinue.allocation.nodelist import compress_nodelist
from retinue.allocation.records import Allocation
from retinue.errors import PlanError
from retinue.manifest.schema import Manifest, Service
from retinue.plan.expand import PlaceholderError, expand_known
from retinue.plan.launches import (
    Site,
    build_egress,
    build_launch,
    build_policy,
    build_service,
)
from retinue.plan.places import ALL, Ledger, Place, Want, build_groups
from retinue.plan.records import GroupPlan, Plan, ReplicaPlan, ServicePlan, TrainerPlan
from retinue.plan.seats import has_node_placeholder, place_launch
from retinue.plan.trainer_words import check_trainer_words

MIB = 1024 * 1024


def build_plan(
    manifest: Manifest,
    allocation: Allocation,
    trainer_argv: Sequence[str],
    start_dir: str,
    run_dir: str,
    attempt_dir: str,
) -> Plan:
    """Place every replica of the manifest on a node of the allocation.

    Shape:  replicas are placed in manifest order; ids are `judge/0`; trainer_argv empty: no trainer (`up`).
    Errors: PlanError lists every service that does not fit, and what was free; UsageError for a placeholder of the
            trainer's command that is misspelt.
    Source: start lanes follow pebble's StartOrder.
    """
    warnings = check_trainer_words(trainer_argv, manifest.nodes)
    groups = _build_groups(manifest, allocation, warnings)
    lanes = _build_lanes({name: tuple(service.depends_on) for name, service in manifest.services.items()})
    site = Site(start_dir=start_dir, attempt_dir=attempt_dir, mapping=_build_mapping(groups, run_dir))
    replicas = _build_replicas(manifest, allocation, groups, site)
    trainer = _build_trainer(manifest, trainer_argv, site.mapping)
    warnings.extend(_check_shared_nodes(trainer, groups, replicas))
    warnings.extend(_check_unknown_memory(manifest, allocation))
    warnings.extend(check_fixed_ports(manifest))
    return Plan(
        name=manifest.run.name,
        allocation=allocation,
        groups=tuple(groups.values()),
        services=_build_services(manifest, lanes, replicas),
        replicas=replicas,
        trainer=trainer,
        start_lanes=lanes,
        stop_lanes=lanes[::-1],
        drain_s=manifest.run.drain_s,
        hold_s=manifest.run.hold_s,
        wants_namespace=manifest.node.namespace,
        orphan_grace_s=manifest.run.orphan_grace_s,
        join_timeout_s=manifest.run.join_timeout_s,
        warnings=tuple(warnings),
    )


def _build_groups(manifest: Manifest, allocation: Allocation, warnings: list[str]) -> dict[str, GroupPlan]:
    """Give every group its nodes.

    Errors: PlanError; without groups nothing can be placed, and every service would be a finding that says the same.
    """
    problems: list[str] = []
    counts = {name: group.count for name, group in manifest.nodes.items()}
    groups = {group.name: group for group in build_groups(counts, allocation.nodes, problems, warnings)}
    problems.extend(_check_references(manifest, groups))
    if problems:
        raise PlanError(problems)
    return groups


def _build_services(
    manifest: Manifest, lanes: Sequence[Sequence[str]], replicas: Sequence[ReplicaPlan]
) -> tuple[ServicePlan, ...]:
    lane_of = {name: number for number, lane in enumerate(lanes) for name in lane}
    ids = {name: tuple(place.id for place in replicas if place.service == name) for name in manifest.services}
    return tuple(build_service(name, service, ids[name], lane_of[name]) for name, service in manifest.services.items())


def _check_references(manifest: Manifest, groups: Mapping[str, GroupPlan]) -> list[str]:
    """Find names that mean nothing; `check_manifest` says it with a line, a manifest built in code lands here."""
    known = ", ".join(groups)
    problems = []
    if manifest.trainer.on is not None and manifest.trainer.on not in groups:
        problems.append(f"trainer.on: no group of nodes '{manifest.trainer.on}'; there is {known}")
    for name, service in manifest.services.items():
        if _group_of(service) not in groups:
            problems.append(f"{name}: no group of nodes '{_group_of(service)}'; there is {known}")
        problems.extend(
            f"{name}: depends on '{other}', which is no service"
            for other in service.depends_on
            if other not in manifest.services
        )
    return problems


def _group_of(service: Service) -> str:
    return service.per_node or service.place.on or ALL


def _build_lanes(depends_on: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Sort services into lanes: each waits only for services of earlier lanes.

    Errors: PlanError names the services that wait for each other.
    """
    lanes: list[tuple[str, ...]] = []
    waiting = dict(depends_on)
    while waiting:
        lane = tuple(name for name, others in waiting.items() if not any(other in waiting for other in others))
        if not lane:
            raise PlanError([f"{', '.join(waiting)}: wait for each other in a circle"])
        lanes.append(lane)
        waiting = {name: others for name, others in waiting.items() if name not in lane}
    return tuple(lanes)


def _build_mapping(groups: Mapping[str, GroupPlan], run_dir: str) -> dict[str, str]:
    mapping = {"run_dir": run_dir}
    for group in groups.values():
        mapping[f"{group.name}.nodelist"] = compress_nodelist(group.nodes)
        mapping[f"{group.name}.count"] = str(len(group.nodes))
    return mapping


def _build_replicas(
    manifest: Manifest, allocation: Allocation, groups: Mapping[str, GroupPlan], site: Site
) -> tuple[ReplicaPlan, ...]:
    """Place service after service in manifest order; the first replica of a service that does not fit ends its turn.

    Errors: PlanError lists every service that does not fit.
    """
    problems: list[str] = []
    ledger = Ledger(allocation.nodes)
    replicas: list[ReplicaPlan] = []
    for name, service in manifest.services.items():
        group = groups[_group_of(service)]
        places = _place_service(name, service, group, ledger, problems)
        try:
            replicas.extend(_build_replica(name, service, group, place, site) for place in enumerate(places))
        except PlaceholderError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise PlanError(problems)
    return tuple(replicas)


def _place_service(name: str, service: Service, group: GroupPlan, ledger: Ledger, problems: list[str]) -> list[Place]:
    want = _build_want(name, service)
    count = len(group.nodes) if service.per_node else service.replicas
    if service.min_ready > count:
        gives = f"group {group.name} gives it" if service.per_node else "it has"
        problems.append(
            f"{name}: min_ready is {service.min_ready}, but {gives} {count} replica{'' if count == 1 else 's'}"
        )
    places: list[Place] = []
    for index in range(count):
        nodes = group.nodes[index : index + 1] if service.per_node else group.nodes
        place = ledger.choose(want, group.name, nodes)
        if place is None:
            where = (
                f"node {nodes[0]} (per_node: {group.name})" if service.per_node else f"one node of group {group.name}"
            )
            problems.append(
                f"{name}/{index}: needs {want.render()} on {where}; free: {ledger.render_free(want, nodes)}"
            )
            break
        why = f"one on every node of group {group.name}" if service.per_node else place.why
        places.append(Place(node=place.node, gpus=place.gpus, why=why))
        ledger.take(want, place.node, place.gpus)
    return places


def _build_want(name: str, service: Service) -> Want:
    place = service.place
    return Want(
        service=name,
        gpus=place.gpus,
        cpus=place.cpus or 0,
        # Rounded up: a replica that asks for half a MiB takes one.
        memory_mib=-(-(place.memory_bytes or 0) // MIB),
        shares_gpus=place.share_gpus,
        wants_pack=place.strategy == "pack",
    )


def _build_replica(
    name: str, service: Service, group: GroupPlan, numbered: tuple[int, Place], site: Site
) -> ReplicaPlan:
    index, place = numbered
    unplaced = build_launch(name, service, index, site)
    want = _build_want(name, service)
    is_movable = service.per_node is None and len(group.nodes) > 1
    return ReplicaPlan(
        id=f"{name}/{index}",
        service=name,
        index=index,
        node=place.node,
        group=group.name,
        launch=place_launch(unplaced, place.node, place.gpus),
        policy=build_policy(service, unplaced, is_movable),
        gpus=place.gpus,
        why=place.why,
        cpus=want.cpus,
        memory_mib=want.memory_mib,
        shares_gpus=want.shares_gpus,
        wants_pack=want.wants_pack,
        unplaced=unplaced if is_movable and has_node_placeholder(unplaced) else None,
    )


def _build_trainer(manifest: Manifest, argv: Sequence[str], mapping: Mapping[str, str]) -> TrainerPlan:
    trainer = manifest.trainer
    return TrainerPlan(
        group=trainer.on,
        argv=tuple(expand_known(word, mapping) for word in argv),
        stop_signal=trainer.stop.signal,
        grace_s=trainer.stop.grace_s,
        egress=build_egress(trainer.egress),
    )


def _check_shared_nodes(
    trainer: TrainerPlan, groups: Mapping[str, GroupPlan], replicas: Sequence[ReplicaPlan]
) -> list[str]:
    """Warn where a service has devices of a node of the trainer: its srun covers every GPU of the node."""
    if not trainer.argv:
        return []
    group = groups[trainer.group or ALL]
    shared: dict[str, list[str]] = {}
    for place in replicas:
        if place.gpus and place.node in group.nodes:
            shared.setdefault(place.service, []).append(f"{place.node} GPU {','.join(map(str, place.gpus))}")
    return [
        f"{name} has devices of nodes where the trainer runs, group {group.name} ({'; '.join(devices)}): an srun there "
        "covers all GPUs of the node, so keep the trainer off these, or place the service on another group"
        for name, devices in shared.items()
    ]


def _check_unknown_memory(manifest: Manifest, allocation: Allocation) -> list[str]:
    asking = [name for name, service in manifest.services.items() if service.place.memory_bytes]
    if not asking or all(node.memory_mib for node in allocation.nodes):
        return []
    return [f"{', '.join(asking)}: memory is asked for, but nobody knows what the nodes have; it is not counted there"]


def check_fixed_ports(manifest: Manifest) -> list[str]:
    """Warn of a service that listens where the manifest says: nobody is told of it, and there is no URL."""
    return [
        f"{name} listens on the fixed port {port}, so it gets no URL; write {{port}} in its command instead, and let "
        "its probes ask the replica's own port"
        for name, service in manifest.services.items()
        if not service.has_port and (port := _find_fixed_port(service))
    ]


def _find_fixed_port(service: Service) -> str:
    """The port that its command or a probe names; empty when none does."""
    named = re.search(r"(?:^|\0)--port[=\0](\d+)(?:\0|$)", "\0".join(service.command))
    if named:
        return named[1]
    probes = [probe for _, probe in service.probes.present()]
    ports = [probe.http.port if probe.http is not None else probe.tcp for probe in probes]
    return next((str(port) for port in ports if port), "")
