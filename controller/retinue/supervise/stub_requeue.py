"""Whether the job is queued again after this attempt, and the asking for it.

The decision is a pure function. Slurm is asked in forked children, for a bounded time; the stub itself imports the
standard library only.
"""

import os
from typing import Any

from retinue.supervise.stub_bounded import run_bounded
from retinue.supervise.stub_run import Run, say

ASK_LIMIT_S = 10.0
STATE_LIMIT_S = 4.0
"""Slurm has signalled us, and will not wait long: the verdict is to be written before it kills."""
TIMEOUT, PREEMPTED, NODE_FAIL = "timeout", "preempted", "node_fail"
ENDS = {
    "deadline": TIMEOUT,
    "timeout": TIMEOUT,
    "preempted": PREEMPTED,
    "node_lost": NODE_FAIL,
}
"""`ended_by` -> the word of the policy."""
WARNING = "USR2"
"""What `sbatch --signal=B:USR2@N` sends before the time limit."""
SLURM_REASONS = {"TimeLimit": TIMEOUT, "NodeDown": NODE_FAIL}
"""Slurm's reason while it ends a job -> the word of the policy. Its state is COMPLETING then, whatever the cause."""
SIGNAL, NODE_LOST = "signal", "node_lost"
UNCLEAR = (SIGNAL, NODE_LOST)
"""`ended_by` that Slurm may know better."""
REFINED = {TIMEOUT: "timeout", PREEMPTED: "preempted"}
"""What it is then."""


class Decision:
    """Whether the next attempt is asked for."""

    __slots__ = ("is_requeued", "is_wanted", "reason")

    def __init__(self, is_requeued: bool, is_wanted: bool, reason: str) -> None:
        self.is_requeued = is_requeued
        """There will be another attempt, as far as this one knows."""
        self.is_wanted = is_wanted
        """It is ours to ask for: Slurm has not queued the job again itself."""
        self.reason = reason


class End:
    """How the attempt ended, with what Slurm said of it."""

    __slots__ = ("is_queued", "word")

    def __init__(self, word: str, is_queued: bool = False) -> None:
        self.word = word
        """In the policy's words; empty for an end that is final."""
        self.is_queued = is_queued
        """Slurm has queued the job again itself: it counts one more restart than this attempt is."""


def find_end(ended_by: str, signal_name: str, told: dict[str, Any], attempt: int) -> End:
    """Name how the attempt ended.

    Shape:  `told` is Slurm's reason, restarts and is_preempted, or empty. What Slurm says goes before what we saw: it
            stops steps first, so that a preemption or the time limit may look like lost nodes. A stop by signal that
            Slurm has no word for is a plain `scancel`, and final.
    """
    is_queued = int(told.get("restarts", 0)) > attempt
    word = SLURM_REASONS.get(str(told.get("reason", "")), "")
    if not word and told.get("is_preempted"):
        word = PREEMPTED
    if not word:
        word = TIMEOUT if ended_by == SIGNAL and signal_name == WARNING else ENDS.get(ended_by, "")
    # What else queues a running job again without a word is a preemption, or somebody's `scontrol requeue`.
    return End(word or (PREEMPTED if is_queued else ""), is_queued)


def decide_requeue(on: tuple[str, ...], limit: int, attempt: int, end: End) -> Decision:
    """Decide by the policy whether another attempt follows.

    Units: attempt counts from 0; limit is the number of attempts after the first, whatever ended them.
    """
    if end.is_queued:
        return Decision(True, False, f"Slurm itself has queued the job again: attempt {attempt + 1} follows")
    if not end.word:
        return Decision(False, False, "not queued again: this end is final")
    if end.word not in on:
        return Decision(False, False, f"not queued again: {end.word} is not in run.requeue.on ({', '.join(on)})")
    if attempt >= limit:
        return Decision(False, False, f"not queued again after {end.word}: attempt {attempt} of {limit} was the last")
    return Decision(True, True, f"queued again after {end.word}: attempt {attempt + 1} of {limit} follows")


def look_at_end(run: Run, ended_by: str, signal_name: str) -> End:
    """Name this run's end; of a signal that says nothing itself, and of a lost node, Slurm is asked."""
    is_unclear = ended_by == NODE_LOST or (ended_by == SIGNAL and signal_name in ("", "TERM"))
    is_asked = bool(run.job_id) and is_unclear
    return find_end(ended_by, signal_name, _ask_job(run.job_id) if is_asked else {}, run.attempt)


def requeue_job(run: Run) -> str:
    """Have Slurm queue the job again, which ends this attempt. Empty: done; else why not."""
    answer = run_bounded(lambda: _send_requeue(run.job_id), ASK_LIMIT_S)
    return answer.problem or str(answer.value or "")


def _ask_job(job_id: str) -> dict[str, Any]:
    """Ask Slurm for its reason and its count of restarts; empty where it does not say, and nothing follows."""
    answer = run_bounded(lambda: _read_job(job_id), STATE_LIMIT_S)
    if answer.problem or not isinstance(answer.value, dict):
        say(f"cannot ask Slurm why the job was stopped: {answer.problem or 'no answer'}")
        return {}
    return answer.value


# --- in a bounded child: only there is Slurm's room imported ------------------------------


def _read_job(job_id: str) -> dict[str, Any]:
    from retinue.slurm.answers import Unknown
    from retinue.slurm.query import SlurmDesk

    answer = SlurmDesk(os.environ, say).read_job_state(job_id)
    if isinstance(answer, Unknown):
        raise OSError(answer.why)
    return {"reason": answer.reason, "restarts": answer.restarts, "is_preempted": answer.is_preempted}


def _send_requeue(job_id: str) -> str:
    from retinue.slurm.query import SlurmDesk

    refused = SlurmDesk(os.environ, say).requeue_job(job_id)
    return refused.why if refused is not None else ""
