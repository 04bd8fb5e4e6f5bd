"""A login node without Slurm: a host name and pids of its own, the same files; Slurm's commands tell on who asks."""

import os
import subprocess
from pathlib import Path

from support.command import RETINUE
from support.real_run import PATIENCE_S

SLURM = ("squeue", "scontrol", "sinfo", "sacct", "srun", "sbatch", "scancel", "sstat")
SCENE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--uts", "--kill-child")


def can_unshare() -> bool:
    return subprocess.run([*SCENE, "true"], capture_output=True).returncode == 0


class Login:
    """Runs commands there; `directory` is where the run was started."""

    def __init__(self, directory: Path, has_network: bool = True) -> None:
        self.directory = directory
        self.asked = directory / "slurm-was-asked"
        tools = directory / "slurm-tools"
        tools.mkdir(exist_ok=True)
        for name in SLURM:
            (tools / name).write_text(f"#!/bin/sh\\necho {name} >> {self.asked}\\nexit 1\\n".replace("\\n", "\n"))
            (tools / name).chmod(0o755)
        self.env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        enter = ("sh", "-c", 'hostname login1 && exec "$@"', "sh")
        self.prefix = (*SCENE, *(() if has_network else ("--net",)), *enter)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        done = subprocess.run(
            [*self.prefix, *RETINUE, *words],
            cwd=self.directory,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert "Traceback" not in done.stderr + done.stdout, done.stderr
        return done

    def start(self, *words: str, output: Path) -> subprocess.Popen[bytes]:
        """Start one that follows; `--kill-child` makes killing it end what runs inside."""
        with open(output, "wb") as file:
            return subprocess.Popen(
                [*self.prefix, *RETINUE, *words],
                cwd=self.directory,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
