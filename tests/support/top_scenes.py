"""What a run may look like to `top`: a small one with every kind of trouble, and one of ten thousand replicas."""

from collections.abc import Mapping
from pathlib import Path

from retinue.cli.top_rows import list_rows
from retinue.cli.top_sight import Choice, Sight
from retinue.cli.top_view import Scene
from retinue.journal.events import EventLine
from retinue.journal.rundir import create_run_dir
from retinue.journal.status import (
    JournalStatus,
    NodeStatus,
    ReplicaStatus,
    ServiceStatus,
    Status,
    TrainerStatus,
)
from retinue.terms.record import replace, to_json, to_pretty_json

NOW = 1_700_000_000.0


def build_replica(key: str, phase: str = "ready", reason: str = "ready", restarts: int = 0) -> ReplicaStatus:
    return ReplicaStatus(key, phase, restarts + 1, "node001", 7, 4007, 30001, NOW - 65, restarts, reason)


def build_service(name: str, replicas: list[ReplicaStatus], in_flight: int = 0) -> ServiceStatus:
    phases: dict[str, int] = {}
    for replica in replicas:
        phases[replica.phase] = phases.get(replica.phase, 0) + 1
    return ServiceStatus(
        name=name,
        kind="command",
        ready=phases.get("ready", 0),
        wanted=len(replicas),
        min_ready=1,
        restarts=sum(replica.restarts for replica in replicas),
        in_flight=in_flight,
        phases=phases,
        reason=replicas[-1].reason,
    )


def build_node(name: str, state: str = "joined", **fields: object) -> NodeStatus:
    node = NodeStatus(name, state, "namespace", "", 11, 10, 9, 1, 0.0, 0.42, 231_000, 0, 0.0)
    return replace(node, gateway_port=20001 if state == "joined" else None, **fields)


def build_status(groups: list[tuple[list[ReplicaStatus], int]], nodes: list[NodeStatus]) -> Status:
    """Shape: each group is one service's replicas and its requests in flight."""
    services = tuple(build_service(group[0].id.partition("/")[0], group, in_flight) for group, in_flight in groups)
    return Status(
        run_id="0123456789ab",
        name="kolibri-rl",
        attempt=0,
        phase="running",
        updated_utc=NOW,
        started_utc=NOW - 5025,
        end_utc=NOW + 100_000,
        ended_by="",
        cause="",
        controller_pid=4711,
        controller_starts=1,
        gateway_port=20001,
        trainer=TrainerStatus("running", 4712, None, None),
        services=services,
        replicas=tuple(replica for group, _ in groups for replica in group),
        nodes=tuple(nodes),
        journal=JournalStatus(0.0, 0, ""),
    )


JUDGE = [
    build_replica("judge/0"),
    build_replica("judge/1", "backoff", "exited with code 1; again in 20 s", restarts=3),
    build_replica("judge/2"),
    build_replica("judge/3", "starting", "readiness probe: connection refused"),
]
TROUBLED = build_status(
    [
        ([build_replica("corpus/0"), build_replica("corpus/1")], 3),
        (JUDGE, 117),
        ([build_replica("customer/0", "unready", "readiness probe failed 3 times: status 503")], 0),
        ([build_replica("index/0", "stopped", "completed")], 0),
    ],
    [
        build_node("node001", requests=123_456, held=12),
        build_node("node002", load_per_cpu=3.1, memory_free_mib=900, lag_s=0.4, agent_starts=2),
        build_node("node003", "lost", cause="silent for 10 s"),
        build_node("node004", "joining"),
    ],
)
EVENTS = tuple(
    EventLine(seq, NOW - 60 + seq, f"judge/{seq % 4}", "Exited", "exited with code 1", "ready", "backoff", "last words")
    for seq in range(20)
)


def build_scene(status: Status | None = TROUBLED, choice: Choice | None = None, **fields: object) -> Scene:
    choice = choice or Choice()
    sight = Sight("/runs/kolibri-4711", status, events=EVENTS)
    return Scene(replace(sight, **fields), choice, list_rows(status, choice))


def build_large(services: int = 10, replicas: int = 1000, nodes: int = 1000) -> Status:
    """Ten thousand replicas, one in fifty of them not well."""
    groups = [
        (
            [
                build_replica(f"judge{number}/{index}", "backoff" if index % 50 == 7 else "ready", "because " * 20)
                for index in range(replicas)
            ],
            number,
        )
        for number in range(services)
    ]
    return build_status(groups, [build_node(f"node{index:04}", requests=index) for index in range(nodes)])


def write_run(run_dir: Path, status: Status = TROUBLED, logs: Mapping[str, str] | None = None) -> Path:
    """Write a run directory as a controller leaves it, owned by this process; returns the attempt's."""
    texts = {"manifest.yaml": "retinue: 1\n", "attempt-0/status.json": to_pretty_json(status).decode()}
    texts["attempt-0/events.jsonl"] = "".join(to_json(event).decode() + "\n" for event in EVENTS)
    attempt_dir = create_run_dir(run_dir, status.run_id, 0, texts)
    for key, text in (logs or {}).items():
        path = attempt_dir / "logs" / key.replace("/", ".") / "launch-1.log"
        path.parent.mkdir()
        path.write_text(text)
    return attempt_dir
