"""Facts about how much of everything there is, and about the job around us -> findings. Pure."""

from collections.abc import Iterator

from retinue.doctor import remedies
from retinue.doctor.records import Facts, Finding, State
from retinue.doctor.remedies import ADMIN, YOU

PROCESSES, PROCESSES_MIN = 65536, 512
"""For thousands of sandboxes on a node; for a run without any."""
FILES, FILES_MIN = 8192, 1024
"""A shard of the sandbox host holds 8,000 sandboxes; the gateway a thousand requests."""
INOTIFY, PIPE_PAGES = 1024, 262144
PAGES_A_PIPE = 16


def judge_processes(facts: Facts) -> Iterator[Finding]:
    parts, limits = ("keeper", "checks", "sandbox"), find_process_limits(facts)
    if not limits:
        yield Finding("processes", parts, State.OK, "unlimited")
        return
    name = min(limits, key=lambda key: limits[key])
    count = limits[name]
    hidden = "; the host's kernel.pid_max does not show in here" if facts.is_in_namespace else ""
    saw = f"at most {count} processes and threads ({name}){hidden}"
    if count >= PROCESSES:
        yield Finding("processes", parts, State.OK, saw)
        return
    soft, hard = facts.limits.get("nproc", (-1, -1))
    can_raise = name == "ulimit -u" and soft != hard
    remedy = {
        "kernel.pid_max": remedies.PID_MAX,
        "kernel.threads-max": remedies.THREADS_MAX,
        "ulimit -u": remedies.NPROC if can_raise else remedies.NPROC_HARD,
        "pids.max of the control group": remedies.PIDS_MAX,
    }[name]
    state = State.FALLBACK if count >= PROCESSES_MIN else State.REFUSED
    means = f"all sandboxes, checks and services of the node share them: about {count // 4} sandboxes at work"
    yield Finding("processes", parts, state, saw, means, YOU if can_raise else ADMIN, remedy)


def find_process_limits(facts: Facts) -> dict[str, int]:
    """Every limit on the number of processes that is there; what is unlimited is left out."""
    found = {
        "kernel.pid_max": facts.find_number("kernel.pid_max"),
        "kernel.threads-max": facts.find_number("kernel.threads-max"),
        "ulimit -u": facts.limits.get("nproc", (-1, -1))[0],
        "pids.max of the control group": facts.cgroup.pids_max,
    }
    if facts.is_in_namespace:
        # Inside a pid namespace the kernel shows that namespace's own.
        del found["kernel.pid_max"]
    return {name: count for name, count in found.items() if count is not None and count >= 0}


def judge_descriptors(facts: Facts) -> Iterator[Finding]:
    parts = ("gateway", "checks", "sandbox")
    hard = facts.limits.get("nofile", (-1, -1))[1]
    saw = f"ulimit -H -n {hard}" if hard >= 0 else "unlimited"
    if hard < 0 or hard >= FILES:
        yield Finding("descriptors", parts, State.OK, saw)
        return
    state = State.FALLBACK if hard >= FILES_MIN else State.REFUSED
    means = f"more processes share the sandboxes of a node, {hard} each; the gateway holds fewer requests"
    yield Finding("descriptors", parts, state, saw, means, ADMIN, remedies.NOFILE)


def judge_inotify(facts: Facts) -> Iterator[Finding]:
    count = facts.find_number("fs.inotify.max_user_instances")
    saw = f"fs.inotify.max_user_instances = {count}"
    if count is None or count >= INOTIFY:
        yield Finding("inotify", ("sandbox",), State.OK, saw if count is not None else "the kernel does not say")
        return
    means = f"all sandboxes of the node share {count}: programs that watch files get EMFILE beyond them"
    yield Finding("inotify", ("sandbox",), State.FALLBACK, saw, means, ADMIN, remedies.INOTIFY)


def judge_pipes(facts: Facts) -> Iterator[Finding]:
    pages = facts.find_number("fs.pipe-user-pages-soft")
    saw = f"fs.pipe-user-pages-soft = {pages}"
    if pages is None or pages == 0 or pages >= PIPE_PAGES:
        yield Finding("pipes", ("sandbox",), State.OK, saw if pages is not None else "the kernel does not say")
        return
    count = pages // PAGES_A_PIPE
    means = f"after about {count} pipes of yours on the node new ones hold 8 KiB: output is slower, not lost"
    yield Finding("pipes", ("sandbox",), State.FALLBACK, saw, means, ADMIN, remedies.PIPES)


def judge_keyrings(facts: Facts) -> Iterator[Finding]:
    count = facts.find_number("kernel.keys.maxkeys")
    saw = "no keyrings" if count is None else f"kernel.keys.maxkeys = {count}"
    yield Finding("keyrings", ("sandbox",), State.OK, saw + ", and a sandbox uses none")


def judge_cgroup(facts: Facts) -> Iterator[Finding]:
    group = facts.cgroup
    saw = f"{group.version or 'no control groups'}{', delegated' if group.is_delegated else ''}"
    if group.is_delegated:
        yield Finding("cgroup", ("sandbox",), State.OK, saw)
        return
    means = "limits by rlimits and each sandbox's pid 1; the job's own control group is the outer wall"
    yield Finding("cgroup", ("sandbox",), State.FALLBACK, f"{saw}, not ours to divide", means)


def judge_slurm(facts: Facts) -> Iterator[Finding]:
    if not facts.job_id:
        yield Finding("slurm", ("keeper",), State.OK, "outside a job: this machine alone is used")
        return
    missing = [name for name in ("srun", "scontrol", "squeue") if name not in facts.programs]
    saw = f"job {facts.job_id}, {facts.versions.get('srun', 'srun of unknown version')}"
    if not missing:
        yield Finding("slurm", ("keeper",), State.OK, saw)
        return
    state = State.REFUSED if "srun" in missing else State.FALLBACK
    means = "the nodes cannot be started" if "srun" in missing else "the end of the job is not known for sure"
    saw = f"job {facts.job_id}: no {', '.join(missing)} in PATH"
    yield Finding("slurm", ("keeper",), state, saw, means, YOU, remedies.SLURM)
