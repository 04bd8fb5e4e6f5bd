"""Whether a command was given inside a step of its job: `salloc srun ...`, `srun --pty bash`. Pure.

Such a step keeps what it was given for as long as it lives, and a later one that needs any of it waits, unless one of
the two overlaps. Our own step always does; no environment says whether the outer one does.
"""

import re
from collections.abc import Mapping

RESERVED = 0xFFFFFFF0
"""Numbers from here on are no steps of srun: batch script, extern, the shell of `salloc`. Source: slurm.h."""
OVERLAP = "--overlap"


def read_step(env: Mapping[str, str]) -> str:
    """Read the number of the srun step that this process is in; empty: in none."""
    text = env.get("SLURM_STEP_ID", "")
    return text if re.fullmatch(r"[0-9]{1,10}", text) and int(text) < RESERVED else ""


def describe_step(env: Mapping[str, str]) -> str:
    """Say what being inside a step means for a trainer that starts one, and what to type; empty outside of one."""
    step = read_step(env)
    if not step:
        return ""
    copies = env.get("SLURM_STEP_NUM_TASKS", "1")
    many = f"; this step has {copies} tasks, and srun gives the command {copies} times: add -N1 -n1" * (copies != "1")
    return (
        f"this command was given inside step {step} of the job, an srun that keeps its CPUs, memory and GPUs until it "
        f"ends: without {OVERLAP} there, an srun of the trainer's that needs any of them waits for ever; type `srun "
        f"{OVERLAP} -N1 -n1 ...` before this command, or `srun {OVERLAP} ...` in the trainer's{many}"
    )
