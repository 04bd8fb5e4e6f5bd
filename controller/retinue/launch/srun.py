"""Start the keepers of all nodes of a Slurm job: one step, for the whole run.

Pure: the stub runs it. Which flags the step needs is Slurm's business (`slurm.version`); an environment that leads
no step astray is made by `slurm.hygiene`.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def build_srun_launch(
    python: str,
    join_dir: str,
    env: Mapping[str, str],
    nodes: Sequence[str],
    flags: Sequence[str],
    noise: Sequence[str] = (),
) -> dict[str, Any]:
    """Build the stub's `launch` order for all nodes of the job.

    Shape:  one task a node; each finds its join file in the directory by SLURMD_NODENAME. What srun and slurmstepd say
            goes the same way as the nodes' reports (`has_words`): it names nodes that could not even start ours.
            Lines that begin as one of `noise` are dropped.
            A signal that Slurm sends to all of the job must not make srun kill the step (`is_deaf`).
    """
    argv = ["srun", "--job-name=retinue", *flags, python, "-P", "-m", "retinue", "node", join_dir]
    order = {"op": "launch", "argv": argv, "env": dict(env), "nodes": list(nodes), "noise": list(noise)}
    return order | {"has_words": True, "is_deaf": True}


def build_srun_proof(python: str, run_id: str, flags: Sequence[str]) -> list[str]:
    """Build the argv of the step that the stub starts at the end on nodes that gave no report.

    Shape:  `{count}` and `{nodes}` in its words are the stub's to fill in; as with all of srun's options the last
            word about one counts.
    """
    size = ("--nodes={count}", "--ntasks={count}", "--nodelist={nodes}")
    return ["srun", *flags, *size, python, "-P", "-m", "retinue", "node", "--prove", run_id]
