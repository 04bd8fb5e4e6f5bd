"""The plan in plain lines, for `retinue plan` and for the log of a run."""

from retinue.allocation.nodelist import compress_nodelist
from retinue.plan.launches import EXEMPT_KINDS
from retinue.plan.records import Egress, Plan, ReplicaPlan, ServicePlan


def render_plan(plan: Plan) -> list[str]:
    """Say who goes where and why, in which order, and what to look out for."""
    lines = [f"run {plan.name}: {_render_allocation(plan)}"]
    lines.extend(f"group {group.name}: {len(group.nodes)} x {compress_nodelist(group.nodes)}" for group in plan.groups)
    if not plan.wants_namespace:
        lines.append("node namespace: off (services that escape are found by descent and environment tag only)")
    lines.append(_render_trainer(plan))
    for service in plan.services:
        lines.append(_render_service(service))
        lines.extend(f"  {_render_replica(place)}" for place in plan.replicas if place.service == service.name)
    lines.append(f"start: {' -> '.join(', '.join(lane) for lane in plan.start_lanes)}")
    lines.append(f"stop: {' -> '.join(', '.join(lane) for lane in plan.stop_lanes)}")
    lines.extend(_render_egress(plan))
    lines.extend(f"warning: {warning}" for warning in plan.warnings)
    return lines


def _render_allocation(plan: Plan) -> str:
    allocation = plan.allocation
    source = f"Slurm job {allocation.job_id}" if allocation.source == "slurm" else allocation.source
    gpus = sum(node.gpus for node in allocation.nodes)
    cpus = sum(node.cpus for node in allocation.nodes)
    counts = (_count(len(allocation.nodes), "node"), _count(gpus, "GPU"), _count(cpus, "CPU"))
    return f"{source}, {', '.join(counts)}"


def _count(amount: int, noun: str) -> str:
    return f"{amount} {noun}{'' if amount == 1 else 's'}"


def _render_trainer(plan: Plan) -> str:
    trainer = plan.trainer
    where = f"group {trainer.group or 'all'}"
    stop = f"stop {trainer.stop_signal}, then KILL after {trainer.grace_s:g} s"
    if not trainer.argv:
        return f"trainer: none given; {where}"
    return f"trainer: {where}, {stop}: {' '.join(trainer.argv)}"


def _render_service(service: ServicePlan) -> str:
    words = [f"{service.name} ({service.kind})", _count(len(service.replicas), "replica")]
    if service.is_per_node:
        words.append("one per node")
    words.append(f"ready with {service.min_ready}")
    if service.has_port and not service.is_http:
        words.append("TCP: its address may change")
    words.extend(
        f"after {edge.service} {edge.condition}{'' if edge.is_required else ' (not required)'}"
        for edge in service.depends_on
    )
    return f"service {', '.join(words)}"


def _render_replica(place: ReplicaPlan) -> str:
    gpus = f" GPU {','.join(map(str, place.gpus))}" if place.gpus else ""
    return f"{place.id} on {place.node}{gpus}: {place.why}"


def _render_egress(plan: Plan) -> list[str]:
    lines = ["egress, by each node's guard:"]
    for service in plan.services:
        if service.kind in EXEMPT_KINDS:
            lines.append(f"  {service.name}: exempt, its workloads have no network at all")
        else:
            lines.append(f"  {service.name}: {_render_rule(service.egress)}")
    if plan.trainer.argv:
        lines.append(f"  trainer: {_render_rule(plan.trainer.egress)}")
    return lines


def _render_rule(egress: Egress) -> str:
    if not egress.is_on:
        return "off, it reaches whatever its node reaches"
    reach = f"the allocation and {', '.join(egress.allow)}" if egress.allow else "the allocation only"
    return f"{reach}; udp {egress.udp}"
