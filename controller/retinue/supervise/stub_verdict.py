"""The last verdict: what the controller said, and what only the stub can know. Standard library only.

The same keys and forms as `journal.verdict.Verdict`, whose module the stub must not import (it weighs too much);
a test reads one with the other. `clean` is `true` only where it was proved.
"""

import json
import os
import stat
import time
from collections.abc import Sequence
from typing import Any

from retinue.supervise.stub_children import Child
from retinue.supervise.stub_leftovers import Leftover
from retinue.supervise.stub_run import Run

VERDICT = "verdict.json"
LOCK = "lock"

CONTROLLER_LOST = "controller_lost"
SIGNAL = "signal"
INTERNAL = "internal"
TRAINER = "trainer"
FENCED = "fenced"

FAILED_EXIT = 5
INTERNAL_EXIT = 70


class OwnEnd:
    """Why the stub ends the run itself, without a controller's word."""

    __slots__ = ("cause", "ended_by", "exit_code", "grace_s", "trainer_was_over")

    def __init__(self, ended_by: str, cause: str, exit_code: int, grace_s: float) -> None:
        self.ended_by = ended_by
        """A value of `ending.Cause`."""
        self.cause = cause
        self.exit_code = exit_code
        """Of the run where the trainer has none of its own."""
        self.grace_s = grace_s
        """Between TERM and KILL of the trainer."""
        self.trainer_was_over = False
        """It had ended by itself: its exit code stands, whatever happened to us later."""


class Facts:
    """What the stub knows at the end."""

    def __init__(
        self, run: Run, said: dict[str, Any] | None, finish: dict[str, Any] | None, own: OwnEnd | None
    ) -> None:
        self.run = run
        self.said = said
        """The controller's latest verdict."""
        self.finish = finish
        self.own = own
        self.trainer: Child | None = None
        self.controller_starts = 0
        self.is_launched = False
        self.nodes: dict[str, dict[str, Any]] = {}
        """Reports of the nodes' outer processes."""
        self.expected: Sequence[str] = ()
        self.found: Sequence[Leftover] = ()
        """What was left running on this host."""
        self.survivors: Sequence[Leftover] = ()
        self.warnings: list[str] = []
        self.is_dir_left = False
        self.stop_signal = ""
        """Name of the first stop signal."""


def find_exit_code(facts: Facts) -> int:
    """Say what the whole run exits with."""
    trainer, own = facts.trainer, facts.own
    has_trainer_code = trainer is not None and not trainer.is_alive and not trainer.is_refused
    if own is None:
        code = facts.finish.get("exit_code") if facts.finish else None
        return code if isinstance(code, int) and 0 <= code <= 255 else INTERNAL_EXIT
    if own.ended_by == CONTROLLER_LOST and not own.trainer_was_over:
        return FAILED_EXIT
    if trainer is not None and (has_trainer_code or trainer.is_refused):
        return trainer.exit_code
    return own.exit_code


def build_verdict(facts: Facts) -> dict[str, Any]:
    """Merge the controller's verdict, or a minimal honest one, with the stub's own facts."""
    verdict = {**_build_minimal(facts), **(facts.said or {})}
    own = facts.own
    warnings = [*(verdict.get("warnings") or ()), *facts.warnings]
    if own is not None:
        is_first_cause = not (facts.said or {}).get("ended_by") and not own.trainer_was_over
        if is_first_cause or (own.ended_by == CONTROLLER_LOST and not own.trainer_was_over):
            verdict["ended_by"], verdict["cause"] = own.ended_by, own.cause
        else:
            warnings.append(own.cause)
    verdict["exit_code"] = find_exit_code(facts)
    verdict["ended_utc"] = time.time()
    if facts.trainer is not None:
        was_started = not facts.trainer.is_refused and not facts.trainer.is_exec_pending
        verdict["trainer"] = {**facts.trainer.describe_exit(), "was_started": was_started}
    verdict["controller_starts"] = facts.controller_starts
    verdict["nodes"] = _merge_nodes(facts, verdict.get("nodes") or {})
    survivors = {process.pid for process in facts.survivors}
    verdict["leftovers"] = [
        {"pid": process.pid, "cmd": process.cmd, "survived": process.pid in survivors} for process in facts.found
    ]
    verdict["clean"] = _find_clean(facts, verdict["nodes"])
    verdict["warnings"] = warnings
    return verdict


def note_requeue(verdict: dict[str, Any], is_requeued: bool, reason: str) -> None:
    """Say in the verdict whether another attempt follows."""
    verdict["requeued"], verdict["requeue"] = is_requeued, reason


def _build_minimal(facts: Facts) -> dict[str, Any]:
    run, trainer = facts.run, facts.trainer
    is_over = trainer is not None and not trainer.is_alive
    return {
        "run_id": run.run_id,
        "name": run.name,
        "attempt": run.attempt,
        "ended_by": TRAINER if is_over else INTERNAL,
        "cause": f"the trainer {trainer.describe_end()}" if trainer and is_over else "the controller left no verdict",
        "exit_code": INTERNAL_EXIT,
        "started_utc": run.started_utc,
        "ended_utc": 0.0,
        "trainer": None,
        "services": {},
        "nodes": {},
        "leftovers": [],
        "clean": "unknown",
        "warnings": [],
    }


def _merge_nodes(facts: Facts, said: dict[str, Any]) -> dict[str, Any]:
    """A node's own last report is the truth; a node without one is unknown."""
    nodes = {name: {"clean": "unknown", "rung": "", "left": [], "note": "no report"} for name in facts.expected}
    for name, node in said.items():
        is_silent = node.get("clean") in (None, "unknown") and not node.get("note")
        nodes[name] = {**node, "note": "no report"} if is_silent else node
    for name, report in facts.nodes.items():
        before, note = str((said.get(name) or {}).get("note") or ""), str(report.get("note") or "")
        nodes[name] = {
            "clean": _to_word(report.get("clean")),
            "rung": str(report.get("rung") or ""),
            "left": list(report.get("left") or ()),
            "note": note if before in note else f"{before}; {note}" if note else before,
        }
    return nodes


def _to_word(clean: object) -> str:
    return {True: "true", False: "false"}.get(clean, "unknown") if isinstance(clean, bool) else "unknown"


def _find_clean(facts: Facts, nodes: dict[str, Any]) -> str:
    words = {str(node.get("clean") or "unknown") for node in nodes.values()}
    if facts.is_launched and not nodes:
        words.add("unknown")
    if facts.survivors or facts.is_dir_left:
        words.add("false")
    return next((word for word in ("false", "unknown") if word in words), "true")


# --- in a bounded child: the file system may hang --------------------------------------


def remove_own_dir(controller_dir: str, node_dir: str) -> None:
    """Remove the batch host's part of the node directory, and the directory itself when nothing else is in it."""
    if os.path.lexists(controller_dir):
        _remove_tree(controller_dir)
    try:
        os.rmdir(node_dir)
    except OSError:
        # Gone, or not empty: the node's outer process or its janitor removes what is its own.
        return


def _remove_tree(path: str) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    for name in os.listdir(path):
        _remove_tree(os.path.join(path, name))
    os.rmdir(path)


def write_verdict(run: Run, verdict: dict[str, Any]) -> str:
    """Replace verdict.json atomically, then give the run directory's lock back when it is ours; return the path."""
    path = os.path.join(run.attempt_dir, VERDICT)
    draft = f"{path}.{os.getpid()}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(fd, "wb") as file:
            file.write(json.dumps(verdict, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except OSError:
        os.unlink(draft)
        raise
    release_lock(run)
    return path


def release_lock(run: Run) -> None:
    """Remove the lock that names this run; anybody else's stays."""
    path = os.path.join(run.run_dir, LOCK)
    try:
        with open(path, "rb") as file:
            owner = json.load(file)
        if (
            isinstance(owner, dict)
            and owner.get("run_id") == run.run_id
            and owner.get("attempt", run.attempt) == run.attempt
        ):
            os.unlink(path)
    except (OSError, ValueError):
        return
