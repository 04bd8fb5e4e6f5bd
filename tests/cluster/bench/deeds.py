"""What only root can do to one host's insides: kill Slurm's own process of a step, put other files in place of some."""

import subprocess
from typing import TYPE_CHECKING, Any

from bench.layout import Refusal
from bench.procs import build_enter

if TYPE_CHECKING:
    from bench.fabric import Fabric

Answer = dict[str, Any]
SHADOWS = "/run/shadows"
"""On the host: the paths over which something is mounted, one a line."""


def kill_stepd(fabric: "Fabric", step: str, host: str) -> Answer:
    """SIGKILL the slurmstepd of a step, `7.0` or `7.batch`, on one host."""
    found = inside(fabric, host, "pgrep", "--full", "--exact", rf"slurmstepd: \[{step}\]")
    if not found:
        raise Refusal(f"no slurmstepd of {step} on {host}")
    inside(fabric, host, "kill", "-KILL", *found.split())
    return {}


def shadow(fabric: "Fabric", source: str, target: str, host: str) -> Answer:
    """Have the host see `source` at the path `target`, until `unshadow` or `restore`."""
    inside(fabric, host, "mount", "--bind", source, target)
    inside(fabric, host, "sh", "-c", 'echo "$0" >>"$1"', target, SHADOWS)
    return {}


def unshadow(fabric: "Fabric", host: str) -> Answer:
    """Undo every `shadow` of the host."""
    inside(fabric, host, "sh", "-c", '[ ! -e "$0" ] || { xargs -n1 umount --lazy <"$0"; rm "$0"; }', SHADOWS)
    return {}


def inside(fabric: "Fabric", host: str, *argv: str) -> str:
    """Run a command on a host as root. Errors: Refusal with what it said, but for pgrep's "none"."""
    done = subprocess.run(
        [*build_enter(fabric.machines[host].pid), *argv], capture_output=True, text=True, check=False, timeout=20
    )
    if done.returncode and argv[0] != "pgrep":
        raise Refusal(f"cannot {' '.join(argv)} on {host}: {done.stderr.strip()}")
    return done.stdout
