"""From the run's state to what programs and people read: status, endpoints, verdict. Pure."""

from collections import Counter
from typing import Any

from retinue.journal.endpoints import Endpoint, Endpoints
from retinue.journal.status import JournalStatus, NodeStatus, ReplicaStatus, ServiceStatus, Status, TrainerStatus
from retinue.journal.verdict import NodeVerdict, ServiceVerdict, TrainerVerdict, Verdict
from retinue.plan.records import ServicePlan
from retinue.supervise.nodes import NodeView
from retinue.supervise.run import Run
from retinue.supervise.seat import Seat
from retinue.supervise.trainer import build_service_urls
from retinue.terms.record import to_plain
from retinue.terms.replica import Phase
from retinue.terms.run import RunRecord


class ReplicaRows:
    """The replicas' rows of the last snapshot: of many thousands only those that changed are built again."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._rows: dict[str, ReplicaStatus] = {}
        """In the order of the plan: a seat is replaced, never added or removed."""

    def build(self, run: Run) -> tuple[ReplicaStatus, ...]:
        for key, seat in run.fleet.seats.items():
            # The same seat means the same row, except while its reason is what the probes last answered.
            if self._seats.get(key) is seat and not run.is_waited_for(seat):
                continue
            self._seats[key] = seat
            self._rows[key] = _build_replica(seat, run.describe_reason(seat))
        return tuple(self._rows.values())


def build_status(
    run: Run, record: RunRecord, rows: ReplicaRows, pid: int, now_utc: float, journal: JournalStatus
) -> Status:
    """Build the snapshot."""
    state = run.state
    return Status(
        run_id=record.run_id,
        name=record.name,
        attempt=record.attempt,
        phase=state.phase.value,
        updated_utc=now_utc,
        started_utc=record.started_utc,
        end_utc=run.plan.allocation.end_utc,
        ended_by=state.ending.cause.value if state.ending else "",
        cause=state.ending.text if state.ending else "",
        controller_pid=pid,
        controller_starts=run.controller_starts,
        gateway_port=state.gateway_port,
        trainer=TrainerStatus(state.trainer.value, state.trainer_pid, state.trainer_code, state.trainer_signal),
        services=tuple(_build_service(run, service) for service in run.plan.services),
        replicas=rows.build(run),
        nodes=tuple(_build_node(view) for view in run.nodes.views.values()),
        journal=journal,
        warnings=run.plan.warnings,
        egress=run.egress.build_status(),
    )


def _build_service(run: Run, service: ServicePlan) -> ServiceStatus:
    seats = run.fleet.of_service(service.name)
    newest, restarts = (seats[0] if seats else None), 0
    phases: Counter[Phase] = Counter()
    for seat in seats:  # One pass: of ten thousand, each costs a decision that waits.
        phases[seat.replica.phase] += 1
        restarts += seat.replica.restarts
        if newest is None or seat.changed_utc > newest.changed_utc:
            newest = seat
    return ServiceStatus(
        name=service.name,
        kind=service.kind,
        ready=run.fleet.ready_count[service.name],
        wanted=len(seats),
        min_ready=service.min_ready,
        restarts=restarts,
        in_flight=sum(view.facts.in_flight.get(service.name, 0) for view in run.nodes.views.values()),
        phases={phase.value: count for phase, count in phases.items()},
        reason=run.describe_reason(newest) if newest else "",
    )


def _build_replica(seat: Seat, reason: str) -> ReplicaStatus:
    replica = seat.replica
    return ReplicaStatus(
        id=replica.id,
        phase=replica.phase.value,
        incarnation=replica.incarnation,
        node=seat.place.node,
        pid=seat.pid,
        host_pid=seat.host_pid,
        port=seat.port,
        since_utc=seat.changed_utc,
        restarts=replica.restarts,
        reason=reason,
    )


def _build_node(view: NodeView) -> NodeStatus:
    hello, beat = view.hello, view.beat
    state = "lost" if view.is_lost else "joined" if hello else "joining"
    return NodeStatus(
        name=view.name,
        state="ended" if view.report or view.has_left else state,
        rung="" if hello is None else "namespace" if hello.has_namespace else "subreaper",
        weaker=hello.weaker if hello else "",
        agent_host_pid=hello.host_pid if hello else 0,
        keeper_host_pid=hello.keeper_host_pid if hello else 0,
        outer_pid=hello.outer_pid if hello else 0,
        agent_starts=hello.agent_starts if hello else 0,
        lag_s=beat.loop_lag_s,
        load_per_cpu=beat.load_per_cpu,
        memory_free_mib=beat.memory_free_mib,
        log_lines_lost=beat.log_lines_lost,
        journal_stuck_s=beat.journal_stuck_s,
        cause=view.lost_cause,
        gateway_port=view.gateway_port,
        requests=view.facts.requests,
        failed=view.facts.failed,
        held=view.facts.held,
    )


def build_endpoints(run: Run, record: RunRecord, epoch: int) -> Endpoints:
    """Build the endpoints file's content."""
    port = run.state.gateway_port
    urls = build_service_urls(run.plan, port) if port is not None else {}
    services = {}
    for service in run.plan.services:
        if not service.has_port:
            continue
        services[service.name] = Endpoint(
            kind=service.kind,
            url=urls.get(service.name),
            ready=run.fleet.counts.ready[service.name],
            wanted=len(service.replicas),
            addresses=() if service.is_http else _find_addresses(run, service),
        )
    return Endpoints(run_id=record.run_id, epoch=epoch, services=services)


def _find_addresses(run: Run, service: ServicePlan) -> tuple[str, ...]:
    seats = run.fleet.of_service(service.name)
    return tuple(f"127.0.0.1:{seat.port}" for seat in seats if seat.replica.phase is Phase.READY and seat.port)


def build_verdict(run: Run, record: RunRecord, exit_code: int, now_utc: float) -> dict[str, Any]:
    """Build what the controller knows of the end; the stub adds what only it can see."""
    state = run.state
    views = run.nodes.views.values()
    verdict = Verdict(
        run_id=record.run_id,
        name=record.name,
        attempt=record.attempt,
        ended_by=state.ending.cause.value if state.ending else "",
        cause=state.ending.text if state.ending else "",
        exit_code=exit_code,
        started_utc=record.started_utc,
        ended_utc=now_utc,
        clean="unknown",
        trainer=TrainerVerdict(state.trainer_code, state.trainer_signal, was_started=state.trainer_pid > 0),
        services={service.name: _judge_service(run, service) for service in run.plan.services},
        nodes={view.name: _judge_node(view) for view in views},
        requests=run.nodes.count_requests(),
        controller_starts=run.controller_starts,
        agent_starts={view.name: view.hello.agent_starts for view in views if view.hello},
        warnings=run.plan.warnings,
        egress=run.egress.build_status(),
    )
    plain: dict[str, Any] = to_plain(verdict)
    return plain


def _judge_service(run: Run, service: ServicePlan) -> ServiceVerdict:
    seats = run.fleet.of_service(service.name)
    return ServiceVerdict(
        incarnations=sum(seat.replica.incarnation for seat in seats),
        restarts=sum(seat.replica.restarts for seat in seats),
        killed_hard=sum(seat.killed_hard for seat in seats),
        failed=tuple(seat.replica.id for seat in seats if seat.replica.phase is Phase.FAILED),
    )


def _judge_node(view: NodeView) -> NodeVerdict:
    """Until the node's own report is there it is unknown."""
    report = view.report or {}
    clean = {True: "true", False: "false"}.get(report.get("clean"), "unknown")  # type: ignore[call-overload]
    return NodeVerdict(clean=clean, rung=str(report.get("rung", "")), note=view.lost_cause)
