"""Whether the trainer's work is done by tasks of Slurm: then an srun client of it lives here. Standard library only.

Its name alone says so; nothing is ended for its name, only spared.
"""

from retinue.node import scan

NAME = "srun"


def has_srun(pid: int) -> bool:
    """Say whether this process, or one that descends from it, is an srun client."""
    processes = scan.read_processes()
    own = {pid, *scan.find_descendants(processes, [pid])}
    return any(process.name == NAME for process in processes.values() if process.pid in own)
