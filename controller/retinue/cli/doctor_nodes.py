"""Ask every node what it is like: those of a run through its controller, those of a bare Slurm job by one step."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from retinue.allocation.nodelist import parse_nodelist
from retinue.channel.messages import Ask
from retinue.cli.asking import ask_living_run
from retinue.doctor.judge_clock import measure_offset
from retinue.doctor.records import Facts, NodeAnswer
from retinue.errors import AllocationError, NotReadyError
from retinue.slurm.hygiene import scrub_for_step
from retinue.slurm.version import build_step_flags, read_slurm_version
from retinue.supervise.inquiry import COMMAND, LIMIT_S
from retinue.terms.record import DecodeError, from_json

ANSWER_S = LIMIT_S + 10
STEP_S = 120.0
"""For srun to start a task on every node, and for these to look."""


def ask_nodes_of_run(run_dir: Path) -> tuple[NodeAnswer, ...]:
    """Ask the controller, which asks all agents.

    Errors: NotReadyError when the run is over, or its controller does not answer.
    """
    answer = ask_living_run(run_dir, Ask(COMMAND), ANSWER_S)
    if not answer.is_done:
        raise NotReadyError(answer.text)
    try:
        return from_json(answer.text, tuple[NodeAnswer, ...])
    except DecodeError as error:
        raise NotReadyError(f"cannot read the controller's answer: {error}") from None


def ask_nodes_of_job(env: Mapping[str, str]) -> tuple[NodeAnswer, ...]:
    """Run the probes on every node of the Slurm job we are in, by a step beside whatever runs there.

    Errors: AllocationError when there is no srun or no node list; NotReadyError when no node answers in time.
    """
    nodes = parse_nodelist(env.get("SLURM_JOB_NODELIST", ""))
    if not nodes:
        raise AllocationError("cannot tell the nodes of this job: SLURM_JOB_NODELIST is empty")
    flags = build_step_flags(read_slurm_version(env), len(nodes), gpus=0, survives_node_loss=True)
    argv = ["srun", "--job-name=retinue-doctor", *flags, sys.executable, "-P", "-m", "retinue", "facts"]
    sent_utc = time.time()
    try:
        done = subprocess.run(
            argv, env=scrub_for_step(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S
        )
    except subprocess.TimeoutExpired:
        raise NotReadyError(f"srun did not end within {STEP_S:g} s") from None
    except OSError as error:
        raise AllocationError(f"cannot run srun: {error.strerror}") from None
    answers = parse_step(done.stdout, sent_utc, time.time())
    why = done.stderr.strip().splitlines()[-1:] or [f"srun ended with {done.returncode}"]
    return tuple(answers.get(node) or NodeAnswer(node, error=why[0]) for node in nodes)


def parse_step(text: str, sent_utc: float, got_utc: float) -> dict[str, NodeAnswer]:
    """Read one line of facts a node; whatever else a step prints is not ours."""
    found = {}
    for line in text.splitlines():
        try:
            facts = from_json(line, Facts)
        except DecodeError:
            continue
        offset_s, error_s = measure_offset((sent_utc, facts.begun_utc), (got_utc, facts.ended_utc))
        found[facts.node] = NodeAnswer(facts.node, facts, clock_offset_s=offset_s, clock_error_s=error_s)
    return found
