"""The snapshot of a run: `status.json`, for commands, people and the trainer. Never read back to decide."""

import textwrap
import time
from pathlib import Path

from retinue.journal.egress import EgressStatus, render_egress
from retinue.journal.events import escape_controls
from retinue.terms.record import DecodeError, Record, from_json


class ServiceStatus(Record, frozen=True):
    name: str
    kind: str
    ready: int
    wanted: int
    """Replicas the manifest asks for."""
    min_ready: int
    restarts: int
    in_flight: int
    phases: dict[str, int]
    """Phase -> how many replicas are in it."""
    reason: str
    """Of the replica that changed last."""


class ReplicaStatus(Record, frozen=True):
    id: str
    phase: str
    incarnation: int
    node: str
    pid: int
    """In the node's own namespace; 0 when nothing runs."""
    host_pid: int
    port: int | None
    since_utc: float
    restarts: int
    reason: str


class NodeStatus(Record, frozen=True):
    name: str
    state: str
    """`joining` | `joined` | `lost` | `ended`."""
    rung: str
    """`namespace`, or `subreaper` when the node has no namespace of its own."""
    weaker: str
    """Why the rung is weaker; empty when it is not."""
    agent_host_pid: int
    keeper_host_pid: int
    outer_pid: int
    agent_starts: int
    lag_s: float
    load_per_cpu: float
    memory_free_mib: int
    log_lines_lost: int
    journal_stuck_s: float
    cause: str = ""
    """Why it was lost."""
    gateway_port: int | None = None
    """Bound by its keeper; None while it is not."""
    requests: int = 0
    """Answered by its gateway process so far, with an answer or a typed error."""
    failed: int = 0
    """Of those, the typed errors of ours."""
    held: int = 0
    """Waiting in its gateway right now because nothing is ready."""


class TrainerStatus(Record, frozen=True):
    state: str
    """`none` | `asked` | `running` | `ended`."""
    pid: int
    code: int | None
    signal: int | None


class JournalStatus(Record, frozen=True):
    """Whether the run directory takes what the controller writes."""

    stuck_s: float
    lost_lines: int
    last_error: str


class Status(Record, frozen=True):
    """The whole file."""

    run_id: str
    name: str
    attempt: int
    phase: str
    """`joining` | `starting` | `running` | `ending` | `over`."""
    updated_utc: float
    started_utc: float
    end_utc: float | None
    """When the allocation ends; None when nobody says."""
    ended_by: str
    """Empty while nothing ends the run."""
    cause: str
    controller_pid: int
    controller_starts: int
    gateway_port: int | None
    trainer: TrainerStatus
    services: tuple[ServiceStatus, ...]
    replicas: tuple[ReplicaStatus, ...]
    nodes: tuple[NodeStatus, ...]
    journal: JournalStatus
    warnings: tuple[str, ...] = ()
    egress: EgressStatus = EgressStatus()


COLUMNS = 80
STALE_S = 5.0
"""A snapshot this old is printed with its age: a controller that can write is at it every second or two."""


def read_status(path: Path) -> Status | None:
    """Read a snapshot; None when there is none (yet), or none that this version understands."""
    try:
        return from_json(path.read_bytes(), Status)
    except (FileNotFoundError, NotADirectoryError, DecodeError):
        return None


def describe_age(age_s: float) -> str:
    """Say that a snapshot is too old to tell of now; empty when it is not."""
    if age_s < STALE_S:
        return ""
    return f"this snapshot is {age_s:.0f} s old: the controller is down, or the file system is full or hangs"


def render_status(status: Status, now_utc: float, ended_utc: float | None = None) -> str:
    """Print a snapshot in 80 columns: sentences are wrapped, tables are cut.

    Units: ended_utc is when the run ended or was last seen alive; None: it goes on, as far as the snapshot knows.
    """
    if ended_utc is None and status.phase == "over":
        ended_utc = status.updated_utc
    head = [f"run {status.name} ({status.run_id}), attempt {status.attempt}: {status.phase}"]
    if status.ended_by:
        head.append(f"ended by {status.ended_by}: {status.cause}")
    age = describe_age(now_utc - status.updated_utc)
    if age and status.phase != "over":
        head.append(age)
    head.append(_render_trainer(status, now_utc, ended_utc))
    table = ["", f"{'SERVICE':<18} {'READY':>7} {'RESTARTS':>8} {'IN FLIGHT':>9}  LAST"]
    for item in status.services:
        ready = f"{item.ready}/{item.wanted}"
        table.append(f"{item.name:<18} {ready:>7} {item.restarts:>8} {item.in_flight:>9}  {item.reason}")
    table += ["", f"{'NODE':<18} {'STATE':>7} {'LOAD/CPU':>8} {'FREE MiB':>9}  NOTE"]
    for node in status.nodes:
        note = node.cause or node.weaker or node.rung
        table.append(f"{node.name:<18} {node.state:>7} {node.load_per_cpu:>8.2f} {node.memory_free_mib:>9}  {note}")
    egress = render_egress(status.egress)
    tail = [f"egress: {egress}"] if egress else []
    tail += [f"warning: {warning}" for warning in (*status.warnings, *find_journal_trouble(status))]
    return "\n".join([*_wrap(head), *map(_cut, table), *_wrap(tail)])


def _wrap(sentences: list[str]) -> list[str]:
    rows = [textwrap.wrap(escape_controls(text), COLUMNS, subsequent_indent="  ") for text in sentences]
    return [line for row in rows for line in row]


def _cut(row: str) -> str:
    row = escape_controls(row)
    return row if len(row) <= COLUMNS else row[: COLUMNS - 3] + "..."


def _render_trainer(status: Status, now_utc: float, ended_utc: float | None) -> str:
    trainer = status.trainer
    how = "" if trainer.code is None else f" with exit code {trainer.code}"
    how = f" by signal {trainer.signal}" if trainer.signal is not None else how
    is_over = ended_utc is not None
    left = (
        ""
        if is_over or status.end_utc is None
        else f", {max(0.0, status.end_utc - now_utc):.0f} s of the allocation left"
    )
    pid = f" (pid {trainer.pid})" if trainer.state == "running" else ""
    up_s = (now_utc if ended_utc is None else ended_utc) - status.started_utc
    clock = time.strftime("%H:%M:%S", time.gmtime(max(0.0, up_s)))
    return f"trainer: {trainer.state}{pid}{how}; {'was up' if is_over else 'up'} {clock}{left}"


def find_journal_trouble(status: Status) -> list[str]:
    """Say when a file system is full or hangs, for the controller or for a node."""
    found = []
    if status.journal.stuck_s > 5.0 or status.journal.last_error:
        what = status.journal.last_error or f"nothing written for {status.journal.stuck_s:.0f} s"
        found.append(f"the run directory does not take what the controller writes: {what}")
    for node in status.nodes:
        if node.log_lines_lost or node.journal_stuck_s > 5.0:
            found.append(
                f"logs of {node.name}: {node.log_lines_lost} lines lost, oldest waits {node.journal_stuck_s:.0f} s"
            )
    return found
