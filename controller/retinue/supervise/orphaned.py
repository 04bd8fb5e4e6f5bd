"""The end of a run whose stub was killed: the controller does what the stub would have done.

Blocks on purpose: nothing is left to decide, and every wait has a limit.
"""

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retinue.node.census import RUN_ID, build_census, find_left, kill_left
from retinue.node.scan import kill_pids
from retinue.plan.records import Plan
from retinue.terms.run import RunRecord

NODE_LIMIT_S = 10.0
"""How long the outer process may take: it sees the end of the stub's pipe by itself."""
TRAINER_LIMIT_S = 10.0
"""Longest grace for what the trainer started; PDEATHSIG has told its first process already."""
KILL_LIMIT_S = 10.0


def end_orphaned_run(record: RunRecord, plan: Plan, verdict: dict[str, Any]) -> dict[str, Any]:
    """End every process tagged with this run, remove its node directory on this host, and say so in the verdict.

    The run directory is not touched: it may hang.
    """
    node_dir = Path(record.node_dir)
    parts = node_dir / "controller"
    _wait(lambda: not _has_others(node_dir, parts), NODE_LIMIT_S)
    census = build_census({RUN_ID: record.run_id})
    kill_pids(find_left(census), signal.SIGTERM)
    _wait(lambda: not find_left(census), min(plan.trainer.grace_s, TRAINER_LIMIT_S))
    left = kill_left(census, lambda: None, KILL_LIMIT_S)
    shutil.rmtree(parts, ignore_errors=True)
    is_gone = _remove(node_dir)
    host = plan.allocation.nodes[0].name
    nodes = {
        name: node
        if name != host
        else node | {"clean": "true" if is_gone and not left else "false", "left": list(left), "rung": "tag"}
        for name, node in verdict["nodes"].items()
    }
    words = {node["clean"] for node in nodes.values()}
    clean = next((word for word in ("false", "unknown") if word in words), "true")
    return verdict | {"nodes": nodes, "clean": clean, "ended_utc": time.time()}


def _has_others(node_dir: Path, own: Path) -> bool:
    """Whether the node's own part of the directory is still there."""
    try:
        return any(entry != own for entry in node_dir.iterdir())
    except OSError:
        return False


def _remove(node_dir: Path) -> bool:
    try:
        node_dir.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _wait(condition: Callable[[], object], limit_s: float) -> None:
    until_s = time.monotonic() + limit_s
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.05)
