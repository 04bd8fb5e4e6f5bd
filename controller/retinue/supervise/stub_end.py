"""The end of a run, step by step: controller, trainer, launch, what is left, verdict.

Every wait is bounded, and a third stop signal shortens all of them. Standard library only.
"""

from typing import TYPE_CHECKING

from retinue.supervise.stub_bounded import run_bounded
from retinue.supervise.stub_leftovers import end_left
from retinue.supervise.stub_run import say
from retinue.supervise.stub_verdict import Outcome, build_verdict, remove_own_dir, write_verdict

if TYPE_CHECKING:
    from retinue.supervise.stub import Stub

CONTROLLER_LIMIT_S = 10.0
"""From `finish` to the controller's exit."""
LAUNCH_LIMIT_S = 20.0
"""From `finish` to the launch's exit: the controller has told the nodes to end."""
TERM_LIMIT_S = 10.0
"""From TERM to KILL, for launch and trainer."""
KILL_LIMIT_S = 5.0
"""What SIGKILL does not end in this time is stuck in the kernel."""
SCAN_LIMIT_S = 5.0
WRITE_LIMIT_S = 10.0
"""For a file system that hangs."""


class OwnEnd:
    """Why the stub ends the run itself, without a controller's word."""

    __slots__ = ("cause", "ended_by", "exit_code", "grace_s")

    def __init__(self, ended_by: str, cause: str, exit_code: int, grace_s: float = TERM_LIMIT_S) -> None:
        self.ended_by = ended_by
        """A value of `ending.Cause`."""
        self.cause = cause
        self.exit_code = exit_code
        """Where the trainer was never started, or always (5)."""
        self.grace_s = grace_s
        """The trainer's."""


def end_run(stub: "Stub") -> int:
    """Leave nothing behind, write the verdict, and say what the whole run exits with."""
    own = stub.own_end
    controller, work = stub.watch.child, stub.work
    if controller is not None:
        if own is None:
            stub.wait(lambda: not controller.is_alive, CONTROLLER_LIMIT_S)
        kill_child(stub, controller)
    stop_child(stub, work.trainer, own.grace_s if own else TERM_LIMIT_S)
    if work.launch is not None and own is None:
        stub.wait(lambda: not work.launch.is_alive, LAUNCH_LIMIT_S)
    stop_child(stub, work.launch, TERM_LIMIT_S)
    work.read_launch()
    found, survivors = end_left(lambda: scan_bounded(stub), stub.wait)
    report_left(found, survivors)
    outcome = Outcome(stub.run, stub.verdict, own, stub.finish)
    outcome.note_work(work)
    outcome.note_left([p.pack() for p in found], [p.pid for p in survivors])
    return write_end(stub, outcome)


def write_end(stub: "Stub", outcome: "Outcome") -> int:
    """Remove the batch host's own directory, then write the verdict; neither may hang us."""
    run = stub.run
    removed = run_bounded(lambda: remove_own_dir(run.controller_dir, run.node_dir), WRITE_LIMIT_S)
    if removed.problem:
        outcome.note_unremoved(run.controller_dir, removed.problem)
        say(outcome.warnings[-1])
    verdict = build_verdict(outcome)
    written = run_bounded(lambda: write_verdict(run, verdict), WRITE_LIMIT_S)
    if written.problem:
        say(f"cannot write the verdict in {run.attempt_dir}: {written.problem}; it is: {stub.dump(verdict)}")
    else:
        say(f"verdict: {written.value}")
    return outcome.exit_code
