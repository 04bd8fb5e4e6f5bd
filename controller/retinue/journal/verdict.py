"""How a run ended: `verdict.json`, written last, by the stub. The truth about a run.

`clean` is `true` only when every node proved that nothing of the run is left on
it; `unknown` when a node could not say.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retinue.journal.egress import EgressStatus, render_egress
from retinue.journal.events import EventLine, escape_controls, render_event
from retinue.terms.record import DecodeError, Record, from_json, replace


class TrainerVerdict(Record, frozen=True):
    code: int | None = None
    signal: int | None = None
    was_started: bool = False


class ServiceVerdict(Record, frozen=True):
    incarnations: int
    """Launches of all its replicas together."""
    restarts: int
    killed_hard: int
    """Incarnations that needed SIGKILL."""
    failed: tuple[str, ...] = ()
    """Replicas beyond help at the end."""


class NodeVerdict(Record, frozen=True):
    clean: str
    """`true` | `false` | `unknown`."""
    rung: str = ""
    """What ended the node's processes: `namespace`, `subreaper`."""
    left: tuple[int, ...] = ()
    """Host pids that would not die."""
    note: str = ""


class Requests(Record, frozen=True):
    """What the gateways counted over the run."""

    answered: int = 0
    held: int = 0
    """Waited because nothing was ready."""
    retried: int = 0
    """Sent to another replica after the first one failed without a byte of answer."""
    failed: int = 0
    """Ended in a typed error of ours."""


class Verdict(Record, frozen=True):
    """The whole file."""

    run_id: str
    name: str
    attempt: int
    ended_by: str
    """`trainer`, `signal`, `node_lost`, ...: supervise/ending.py has the list."""
    cause: str
    exit_code: int
    started_utc: float
    ended_utc: float
    clean: str
    """`true` | `false` | `unknown`."""
    trainer: TrainerVerdict | None = None
    services: dict[str, ServiceVerdict] = {}
    nodes: dict[str, NodeVerdict] = {}
    requests: Requests = Requests()
    egress: EgressStatus = EgressStatus()
    controller_starts: int = 1
    agent_starts: dict[str, int] = {}
    """Node -> how often its agent was started."""
    leftovers: tuple[dict[str, Any], ...] = ()
    """Processes that the trainer left running and that were ended: {pid, cmd}."""
    warnings: tuple[str, ...] = ()
    requeued: bool = False
    """The Slurm job is queued again: another attempt follows."""
    requeue: str = ""
    """Why, or why not, and which attempt of how many; empty without `run.requeue`."""


def read_verdict(path: Path) -> Verdict | None:
    """Read a verdict; None when the run has none (it goes on, or all of it was killed)."""
    try:
        return from_json(path.read_bytes(), Verdict)
    except (FileNotFoundError, NotADirectoryError, DecodeError):
        return None


def render_verdict(verdict: Verdict) -> str:
    """Print a verdict for people."""
    took_s = verdict.ended_utc - verdict.started_utc
    requests = verdict.requests
    lines = [
        f"run {verdict.name} ({verdict.run_id}) ended by {verdict.ended_by} after {took_s:.0f} s: {verdict.cause}",
        f"  exit code  {verdict.exit_code}",
        f"  requests   {requests.answered} answered, {requests.held} held, {requests.retried} retried, "
        f"{requests.failed} failed",
    ]
    egress = render_egress(verdict.egress)
    lines += [f"  egress     {egress}"] if egress else []
    for name, service in verdict.services.items():
        failed = f", failed: {' '.join(service.failed)}" if service.failed else ""
        hard = f", {service.killed_hard} killed hard" if service.killed_hard else ""
        counts = f"{_count(service.incarnations, 'launch', 'es')}, {_count(service.restarts, 'restart', 's')}"
        lines.append(f"  {name:<10} {counts}{hard}{failed}")
    for name, node in verdict.nodes.items():
        left = f", left: {' '.join(map(str, node.left))}" if node.left else ""
        lines.append(f"  node {name}: clean {node.clean} ({node.rung or 'no report'}){left} {node.note}".rstrip())
    lines += [f"  left by the trainer and ended: pid {item.get('pid')} {item.get('cmd')}" for item in verdict.leftovers]
    lines += [f"  requeue    {verdict.requeue}"] if verdict.requeue else []
    lines += [f"  warning: {warning}" for warning in verdict.warnings]
    lines.append(f"  clean      {verdict.clean}")
    return "\n".join(map(escape_controls, lines))


def _count(number: int, word: str, plural: str) -> str:
    return f"{number} {word}{'' if number == 1 else plural}"


TURNING_POINTS = ("NodeLost", "Exited", "LaunchRefused", "StartupLost", "LivenessLost")
RECOVERED = ("ready", "stopped")
"""Phases that make up for an earlier failure: it is published again, or it has done what it was to do."""
SERVICES_FAILED = ("not_ready", "fail_run", "node_lost")
"""Ends that failures of services and nodes lead to; with any other they are only what was down at the time."""
SUBJECTS_SHOWN = 8


def explain_verdict(verdict: Verdict, events: Sequence[EventLine]) -> list[str]:
    """Tell why a run ended: what ended it, then the failures that nothing had made up for, the first one first.

    Shape: lines for people; per subject its first failure since it was last well, and how many more there were. None
           of them explains a trainer that ended with 0.
    """
    code = f"exit code {verdict.exit_code}"
    said = f"{verdict.ended_by}: {verdict.cause}"
    lines = [escape_controls(said if re.search(rf"\b{code}\b", verdict.cause) else f"{said} ({code})")]
    is_well = verdict.ended_by == "trainer" and verdict.exit_code == 0
    failures = {} if is_well else _find_failures(events)
    if failures:
        is_cause = verdict.ended_by in SERVICES_FAILED
        lines.append(f"{'what led to it' if is_cause else 'what had failed and was still down'}, the first first:")
    for found in list(failures.values())[:SUBJECTS_SHOWN]:
        lines.append(render_event(found[0]))
        if len(found) > 1:
            lines.append(f"{'':26}  and {len(found) - 1} more; the last: {render_event(replace(found[-1], detail=''))}")
    if len(failures) > SUBJECTS_SHOWN:
        lines.append(f"and {len(failures) - SUBJECTS_SHOWN} more that failed later; see `retinue events`")
    if verdict.clean != "true":
        lines.append(f"clean: {verdict.clean}")
        lines += [
            f"  node {name}: {node.clean} {node.note}".rstrip()
            for name, node in verdict.nodes.items()
            if node.clean != "true"
        ]
    return lines


def _find_failures(events: Sequence[EventLine]) -> dict[str, list[EventLine]]:
    """Group what went wrong before the stop began, and was not made up for by then, in order of the first failure."""
    failures: dict[str, list[EventLine]] = {}
    for line in events:
        if line.event == "StopBegun":
            break
        if line.after in RECOVERED:
            failures.pop(line.subject, None)
        elif line.event in TURNING_POINTS:
            failures.setdefault(line.subject, []).append(line)
    return failures
