"""Which Slurm is here, and which flags its srun needs for the step of all nodes."""

import re
import shutil
import subprocess
from collections.abc import Mapping

from retinue.errors import AllocationError

_LIMIT_S = 10.0
EXTERNAL_LAUNCHER = (23, 11)
"""Release from which srun knows --external-launcher."""


def read_slurm_version(env: Mapping[str, str]) -> str:
    """Ask `srun --version`: `22.05.8`. No daemon of Slurm is asked.

    Errors: AllocationError when there is no srun, or it does not say.
    """
    srun = shutil.which("srun", path=env.get("PATH"))
    if srun is None:
        raise AllocationError(
            "cannot find srun in PATH: it starts our agents on the job's nodes; add Slurm's bin to PATH"
        )
    try:
        done = subprocess.run(
            [srun, "--version"], env=dict(env), capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AllocationError(f"cannot ask {srun} for its version: {error}") from None
    version = parse_slurm_version(done.stdout)
    if version is None:
        raise AllocationError(f"cannot read the version of {srun}: it said {(done.stdout or done.stderr)[:200]!r}")
    return version


def parse_slurm_version(text: str) -> str | None:
    """Find `22.05.8` in `slurm-wlm 22.05.8`; None when there is none."""
    match = re.search(r"\b([0-9]{2}\.[0-9]{2}(?:\.[0-9]+)*)", text)
    return match[1] if match else None


def build_step_flags(version: str, node_count: int, gpus: int, survives_node_loss: bool) -> tuple[str, ...]:
    """Build srun's flags for one task on every node, beside any other step of the job.

    Units:  gpus whole devices on every node of the job; 0: none.
    Source: srun(1); `--overlap --mem=0` lets an unmodified trainer's srun start at once, `--wait=0` and
            `--kill-on-bad-exit=0` keep the other nodes when one ends. GPUs are named, because a step is given those
            that the job asked for per task or in all, and none of those that `--exclusive` brought along. From 23.11
            `--external-launcher` gives the step all of every node and takes nothing from others.
    """
    size = (f"--nodes={node_count}", f"--ntasks={node_count}", "--ntasks-per-node=1")
    share = ("--overlap", "--mem=0", *((f"--gres=gpu:{gpus}",) if gpus else ()))
    if read_release(version) >= EXTERNAL_LAUNCHER:
        share = ("--external-launcher",)
    lives = ("--wait=0", "--kill-on-bad-exit=0", *(("--no-kill",) if survives_node_loss else ()))
    plain = ("--mpi=none", "--input=none", "--export=ALL", "--quiet")
    return (*size, *share, "--cpu-bind=none", *lives, *plain)


def read_release(version: str) -> tuple[int, int]:
    """Turn `23.11.4` into (23, 11).

    Errors: ValueError for what is no version of Slurm.
    """
    year, _, rest = version.partition(".")
    return int(year), int(rest.partition(".")[0])
