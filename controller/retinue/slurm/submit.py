"""Send a batch script to Slurm. What sbatch says to people is passed on as it comes."""

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence

from retinue.errors import AllocationError
from retinue.terms.record import Record

_JOB_ID = re.compile(r"([0-9]+)(?:;.*)?")


class Sent(Record, frozen=True):
    """How sbatch ended."""

    job_id: str
    """Empty: it queued nothing, as with --test-only."""
    exit_code: int
    """0; with --wait the job's own."""


def send_script(path: str, options: Sequence[str], env: Mapping[str, str], take_job_id: Callable[[str], None]) -> Sent:
    """Run `sbatch --parsable OPTIONS PATH`.

    Shape:  `take_job_id` is called as soon as the job has a number: with --wait sbatch stays until its end.
    Errors: AllocationError when there is no sbatch, or it refuses; its own words are on stderr already.
    """
    sbatch = shutil.which("sbatch", path=env.get("PATH"))
    if sbatch is None:
        raise AllocationError(
            "cannot find sbatch in PATH: this is no machine to submit from, or Slurm's bin is not in PATH"
        )
    job_id = ""
    argv = [sbatch, "--parsable", *options, path]
    with subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            found = _JOB_ID.fullmatch(line.strip())
            if found and not job_id:
                job_id = found[1]
                take_job_id(job_id)
    if child.returncode != 0 and not job_id:
        raise AllocationError("sbatch did not take the job; what it said is above")
    return Sent(job_id, child.returncode)
