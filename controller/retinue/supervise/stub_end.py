"""The end of a run, step by step: controller, trainer, launch, what is left, verdict.

Every wait is bounded, and a third stop signal shortens all of them. Standard library only.
"""

import json
import os
import signal
from typing import TYPE_CHECKING, Any

from retinue.supervise.stub_bounded import run_bounded
from retinue.supervise.stub_children import Child
from retinue.supervise.stub_leftovers import Leftover, end_left, hunt_children, scan_left
from retinue.supervise.stub_requeue import REFINED, UNCLEAR, decide_requeue, look_at_end, requeue_job
from retinue.supervise.stub_run import say
from retinue.supervise.stub_table import build_table
from retinue.supervise.stub_verdict import (
    FENCED,
    Facts,
    build_verdict,
    find_exit_code,
    note_requeue,
    remove_own_dir,
    write_verdict,
)

if TYPE_CHECKING:
    from retinue.supervise.stub import Stub

CONTROLLER_LIMIT_S = 10.0
"""From `finish` to the controller's exit."""
LAUNCH_LIMIT_S = 20.0
"""From `finish` to the launch's exit: the controller has told the nodes to end."""
TERM_LIMIT_S = 10.0
"""From TERM to KILL of the launch, and of a trainer that the controller forgot."""
KILL_LIMIT_S = 5.0
"""What SIGKILL does not end in this time is stuck in the kernel."""
SCAN_LIMIT_S, HUNG_SCAN_S = 5.0, 1.0
WRITE_LIMIT_S, HUNG_WRITE_S = 5.0, 1.5
"""For a file system that hangs; the second where a controller has said that it does."""


def end_run(stub: "Stub") -> int:
    """Leave nothing behind, write the verdict, and say what the whole run exits with."""
    own, controller, work = stub.own_end, stub.watch.child, stub.work
    if controller is not None:
        if own is None:
            stub.wait(lambda: not controller.is_alive, CONTROLLER_LIMIT_S)
        kill_child(stub, controller)
    stop_child(stub, work.trainer, own.grace_s if own else TERM_LIMIT_S)
    launch = work.launch
    if launch is not None:
        if own is None:
            stub.wait(lambda: not launch.is_alive, LAUNCH_LIMIT_S)
        stop_child(stub, launch, TERM_LIMIT_S)
        work.read_launch()
    prove_silent(stub)
    facts = Facts(stub.run, stub.verdict, stub.finish, own)
    facts.trainer, facts.is_launched = work.trainer, launch is not None and not launch.is_refused
    facts.controller_starts = stub.watch.starts
    facts.stop_signal = stub.stops[0]["signal"] if stub.stops else ""
    facts.nodes, facts.expected = work.nodes, work.expected
    # A child that was given up is what is left now.
    work.spared[:] = [pid for pid in work.spared if pid not in stub.hung.pids]
    facts.found, facts.survivors = end_left(
        lambda: scan_bounded(stub),
        stub.look,
        lambda: hunt_children(os.getpid(), work.spared, stub.wait),
        stub.hung.is_dir_hung,
        is_hurried=bool(stub.finish and stub.finish.get("is_hurried")),
    )
    for process in facts.found:
        say(f"was left running and is ended: {process.pid} {process.cmd}")
    write_end(facts, HUNG_WRITE_S if stub.hung.is_dir_hung else WRITE_LIMIT_S)
    return find_exit_code(facts)


def prove_silent(stub: "Stub") -> None:
    """Ask the nodes that gave no report once more, by a step of its own."""
    work = stub.work
    silent = [node for node in work.expected if node not in work.nodes]
    work.nodes.update(work.proof.ask(silent, stub.look, lambda child: kill_child(stub, child)))


def write_end(facts: Facts, limit_s: float) -> None:
    """Remove the batch host's own directory, then write the verdict; neither may hang us."""
    run = facts.run
    # The keys are on a local disk; the verdict may be on a file system that hangs, so it comes second.
    removed = run_bounded(lambda: remove_own_dir(run.controller_dir, run.node_dir), WRITE_LIMIT_S, is_vital=True)
    if removed.problem:
        facts.is_dir_left = True
        facts.warnings.append(f"cannot remove {run.controller_dir}: {removed.problem}")
        say(facts.warnings[-1])
    verdict = build_verdict(facts)
    if verdict["ended_by"] == FENCED:
        # What this attempt would write now, a newer one's readers would take for theirs.
        say(f"{verdict['cause']}; nothing more is written here")
        return
    end = look_at_end(run, verdict["ended_by"], facts.stop_signal)
    if verdict["ended_by"] in UNCLEAR and end.word in REFINED:
        verdict["ended_by"] = REFINED[end.word]
    has_policy = bool(run.requeue_on and run.job_id)
    decision = decide_requeue(run.requeue_on, run.requeue_max, run.attempt, end)
    if has_policy or end.is_queued:
        note_requeue(verdict, decision.is_requeued, decision.reason)
    write_last(facts, verdict, limit_s)
    if has_policy and decision.is_wanted:
        ask_for_attempt(facts, verdict, limit_s)


def ask_for_attempt(facts: Facts, verdict: dict[str, Any], limit_s: float) -> None:
    """Have the job queued again; Slurm ends this attempt then, so that all it has to say is written before."""
    problem = requeue_job(facts.run)
    if problem:
        note_requeue(verdict, False, f"not queued again: Slurm refused: {problem}")
        write_last(facts, verdict, limit_s)


def write_last(facts: Facts, verdict: dict[str, Any], limit_s: float) -> None:
    """Write the verdict, and show it; where it cannot be written, that is all of it."""
    run = facts.run
    written = run_bounded(lambda: write_verdict(run, verdict), limit_s, is_vital=True)
    if written.problem:
        say(f"cannot write the verdict in {run.attempt_dir}: {written.problem}; it says {json.dumps(verdict)}")
    else:
        for line in build_table(verdict, written.value):
            say(line)


def stop_child(stub: "Stub", child: Child | None, grace_s: float) -> None:
    """TERM, the grace, KILL; a stopped child is continued so that it can obey."""
    if child is None or not child.is_alive:
        return
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGCONT)
    stub.wait(lambda: not child.is_alive, grace_s)
    kill_child(stub, child)


def kill_child(stub: "Stub", child: Child) -> None:
    child.send_signal(signal.SIGKILL)
    stub.wait(lambda: not child.is_alive, KILL_LIMIT_S)


def scan_bounded(stub: "Stub") -> list[Leftover]:
    """Look for what the run has left here.

    Reading the environment of a process that hangs in a page fault hangs too; then descendants are found at least.
    """
    me, spared, tag = os.getpid(), stub.work.spared, f"RETINUE_RUN_ID={stub.run.run_id}".encode()
    limit_s = HUNG_SCAN_S if stub.hung.is_dir_hung else SCAN_LIMIT_S
    answer = run_bounded(lambda: [p.pack() for p in scan_left(me, tag, spared)], limit_s)
    spared.append(answer.pid)
    if answer.problem:
        say(f"cannot look at every process: {answer.problem}")
        return scan_left(me, None, spared, has_commands=False)
    return [Leftover(pid, start, cmd) for pid, start, cmd in answer.value]
