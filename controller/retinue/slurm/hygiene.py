"""Which variables may reach Slurm's commands: what leaks from a batch script, another step or a site would bend them.

Pure: a mapping in, a new one out. What services see is `node.environment`'s business.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

STEP_LEAKS = (
    "SLURM_CPU_BIND*",
    "SLURM_MEM_BIND*",
    "SLURM_GPU_BIND",
    "SLURM_GPU_FREQ",
    "SLURM_DISTRIBUTION",
    "SLURM_DIST_PLANESIZE",
    "SLURM_HINT",
    "SLURM_THREADS_PER_CORE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_PER_GPU",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_TRES_PER_TASK",
    "SLURM_NTASKS*",
    "SLURM_NPROCS",
    "SLURM_EXACT",
    "SLURM_EXCLUSIVE",
    "SLURM_OVERCOMMIT",
    "SLURM_EXTERNAL_LAUNCHER",
    "SLURM_STEP*",
    "SLURM_SRUN*",
    "SLURM_LAUNCH*",
    "SLURM_EXPORT_ENV",
    "SLURM_LABELIO",
    "SLURM_UNBUFFEREDIO",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_OPEN_MODE",
    "SLURM_TASK_PROLOG",
    "SLURM_TASK_EPILOG",
    "SLURM_TIMELIMIT",
    "SLURM_IMMEDIATE",
    "SLURM_WORKING_DIR",
    "SLURM_REMOTE_CWD",
    "SLURM_CONTAINER*",
    "SLURM_MULTI_PROG",
    "SLURM_PTY_*",
    "SLURM_DEBUG",
    "SRUN_*",
)
"""Read by srun as if they had been given as options, or by programs as if they were in that step.

Source: INPUT ENVIRONMENT VARIABLES, srun(1) of 22.05 to 25.11. SLURM_CPU_BIND was seen to pin a nested step to one
core; SLURM_LABELIO and SLURM_STDOUTMODE would change or swallow the nodes' reports; SLURM_GPUS_PER_NODE is refused
beside the --gres that our step gives (26.05).
"""

NESTED_LEAKS = (
    *STEP_LEAKS,
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_GTIDS",
    "SLURM_TASKS_PER_NODE",
    "SLURM_TASK_PID",
    "SLURM_UMASK",
    "PMI_*",
    "PMI[0-9]_*",
    "PMIX_*",
)
"""What a step adds to the job's environment: with it a trainer's srun would be no larger than that step."""

JOB_LEAKS = (
    "SLURM_*",
    "SLURMD_*",
    "SRUN_*",
    "SBATCH_CPU_BIND*",
    "SBATCH_MEM_BIND*",
    "RETINUE_*",
    "PMI_*",
    "PMI[0-9]_*",
    "PMIX_*",
    "OMPI_*",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_*",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
)
"""What says where one job is and what it has: wrong in any other. A GPU list stays where the next job asks for none,
SLURM_RESTART_COUNT would be a wrong attempt, and RETINUE_RUN_ID would have the outer run end the inner one's processes.
"""

ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_*", "SLURM_WORKING_CLUSTER")
"""Names that say where Slurm is and who we are; without them nothing can be asked."""

COMMAND_OPTIONS = ("SLURM_*", "SCONTROL_*", "SQUEUE_*", "SCANCEL_*", "SACCT_*", "SINFO_*")
"""Settings of people and sites that change what a command prints or whom it asks (SLURM_TIME_FORMAT, SQUEUE_FORMAT)."""


def is_named(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def scrub_for_step(env: Mapping[str, str]) -> dict[str, str]:
    """Drop what would change our own step; everything else stays, the job's own variables too."""
    return {name: value for name, value in env.items() if not is_named(name, STEP_LEAKS)}


def scrub_for_trainer(env: Mapping[str, str]) -> dict[str, str]:
    """Drop what leaks from the step that the command was given in (`srun --pty bash`); in a batch script, nothing."""
    if "SLURM_STEP_ID" not in env:
        return dict(env)
    return {name: value for name, value in env.items() if not is_named(name, NESTED_LEAKS)}


def scrub_for_query(env: Mapping[str, str]) -> dict[str, str]:
    """Keep what a command needs to reach Slurm, and have it print the same everywhere: in English, times in UTC."""
    kept = {name: value for name, value in env.items() if is_named(name, ACCESS) or not is_named(name, COMMAND_OPTIONS)}
    return {**kept, "LC_ALL": "C", "TZ": "UTC0"}


def scrub_for_submit(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Build sbatch's environment, which becomes the new job's; also the names that were left out, sorted.

    Shape: the user's own defaults (SBATCH_PARTITION, SBATCH_ACCOUNT, SLURM_CLUSTERS outside a job) stay.
    """
    is_in_job = "SLURM_JOB_ID" in env or "SLURM_JOBID" in env
    leaks = JOB_LEAKS if is_in_job else (*STEP_LEAKS, "SBATCH_CPU_BIND*", "SBATCH_MEM_BIND*", "RETINUE_*")
    # The cluster an outer job was sent to from elsewhere is where that job is, so its variable goes with the others.
    access = tuple(name for name in ACCESS if name != "SLURM_WORKING_CLUSTER") if is_in_job else ACCESS
    dropped = {name for name in env if is_named(name, leaks) and not is_named(name, access)}
    return {name: value for name, value in env.items() if name not in dropped}, tuple(sorted(dropped))
