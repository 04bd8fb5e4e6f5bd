"""Bring a cluster up and take it down, from this machine's side, as root. Leaves nothing: see `take_down`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.files import write_files
from bench.layout import Layout, Refusal
from bench.machine import CGROUPS
from bench.procs import children_of, kill_and_wait, start_ticks, wait_until

UP_S = 120.0
DOWN_S = 30.0
NEEDED = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "bridge": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
"""What must be on PATH, and Debian's package of it; `.ci/prepare` installs the same list."""


def read_outer(state: Path) -> int:
    """The pid of the process that holds the cluster, or 0: the file names pid and start, so a reused pid is not it."""
    try:
        pid, ticks = map(int, (state / "pid").read_text().split())
    except (OSError, ValueError):
        return 0
    return pid if start_ticks(pid) == ticks else 0


def check_machine(layout: Layout) -> None:
    """Errors: Refusal names what is missing, before anything was made."""
    if os.geteuid() != 0:
        raise Refusal("cannot make a cluster: it needs root (network namespaces and a Slurm daemon per node)")
    missing = sorted({package for tool, package in NEEDED.items() if shutil.which(tool) is None})
    if missing:
        raise Refusal(f"cannot make a cluster: apt-get install {' '.join(missing)}")
    if not Path("/etc/slurm").is_dir():
        raise Refusal("cannot make a cluster: no directory /etc/slurm to bind its configuration over")
    if layout.proctrack == "cgroup" and not (CGROUPS / "cgroup.procs").exists():
        raise Refusal(f"cannot use proctrack/cgroup here: no cgroup v1 freezer at {CGROUPS}")


def bring_up(layout: Layout) -> bool:
    """Make the cluster; False when it stands already. What was half made is removed, also when this fails."""
    check_machine(layout)
    if read_outer(layout.state) and (layout.state / "ready").exists():
        return False
    take_down(layout.state)
    forget_failure(layout.state)
    layout.state.mkdir(parents=True)
    layout.state.chmod(0o755)
    try:
        layout.save()
        write_files(layout)
        start_fabric(layout)
    except (Refusal, OSError) as error:
        kept = failure_log(layout.state)
        shutil.copytree(layout.state / "log", kept, dirs_exist_ok=True)
        take_down(layout.state)
        raise Refusal(f"cannot bring the cluster up: {error}\nlogs: {kept}, until the next up or down") from None
    except BaseException:
        take_down(layout.state)
        raise
    return True


def failure_log(state: Path) -> Path:
    """What a failed start said; it outlives the state directory."""
    return state.with_name(f"{state.name}-failed-log")


def forget_failure(state: Path) -> None:
    shutil.rmtree(failure_log(state), ignore_errors=True)


def start_fabric(layout: Layout) -> None:
    """Start the one process that everything else is below, and wait until it says ready or failed."""
    namespaces = ["--net", "--ipc", "--mount", "--pid", "--mount-proc", "--propagation=private"]
    argv = ["unshare", *namespaces, "--fork", "--kill-child=KILL", "--"]
    argv += [sys.executable, "-P", "-m", "bench.fabric", layout.name, layout.base]
    state, package = layout.state, str(Path(__file__).parents[1])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}
    with open(state / "log" / "fabric.log", "ab") as log:
        outer = subprocess.Popen(
            argv, cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    (state / "pid").write_text(f"{outer.pid} {start_ticks(outer.pid)}\n")
    said, ready = state / "failed", state / "ready"
    wait_until(f"the cluster ({state}/log)", lambda: said.exists() or ready.exists() or outer.poll() is not None, UP_S)
    if not ready.exists():
        words = said.read_text() if said.exists() else (state / "log" / "fabric.log").read_text()
        raise Refusal(words.strip())


def take_down(state: Path) -> bool:
    """End the cluster, however far it came, and remove what it had; False when there was nothing.

    The kernel does the work: with the first process of the fabric's pid namespace end all hosts and all processes in
    them, and with the last process of a namespace its links and mounts. Nothing of it ever was in this machine's own.
    """
    if not state.exists():
        return False
    outer = read_outer(state)
    first = children_of(outer) if outer else []
    end_all([*first, *([outer] if outer else [])])
    end_all(find_inside(state))
    remove_cgroups(CGROUPS / state.name)
    shutil.rmtree(state)
    left = find_inside(state)
    if left:
        raise Refusal(f"the cluster is down, but processes are left in its namespaces: {left}")
    return True


def end_all(pids: list[int]) -> None:
    for pid in pids:
        if not kill_and_wait(pid, DOWN_S):
            raise Refusal(f"process {pid} of the cluster did not end within {DOWN_S:g} s")


def find_inside(state: Path) -> list[int]:
    """Processes in a mount namespace of this cluster: its hosts have parts of the state directory bound.

    After the end of the first process there is one only if somebody entered a host's namespaces, but not its pid
    namespace. Whoever made this very process may have done so; it is not counted.
    """
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_inside = entry.name.isdigit() and f" {state}/" in (entry / "mountinfo").read_text()
        except OSError:
            continue
        if is_inside and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def remove_cgroups(top: Path) -> None:
    """Only proctrack/cgroup makes them; they are empty now, deepest first."""
    for directory, _, _ in os.walk(top, topdown=False):
        os.rmdir(directory)
