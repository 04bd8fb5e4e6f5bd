"""Which limits of a machine stand in the way of many sandboxes: what each allows, and what is used of it."""

import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sandbox_calls import list_own, read_meminfo_kib

from retinue.doctor.judgement import find_refusals
from retinue.doctor.records import Facts
from retinue.terms.record import from_json

OTHERS = 3000
"""Processes, namespaces and the like for everything else on the machine."""
KIB_EACH = 450
"""Memory of one idle sandbox, kernel included; docs/sandboxes.md."""
SYSCTLS = (
    "kernel.pid_max",
    "kernel.threads-max",
    *(f"user.max_{kind}_namespaces" for kind in ("user", "mnt", "pid", "net", "ipc", "uts")),
)
"""What root may raise for the bench, and for as long as it runs."""


@dataclass(frozen=True)
class Limit:
    """One limit: units are its own (processes, namespaces, descriptors, KiB)."""

    name: str
    used: int
    most: int

    @property
    def left(self) -> int:
        return self.most - self.used

    def __str__(self) -> str:
        return f"{self.name}: {self.used} of {self.most}"


def ask_doctor() -> list[str]:
    """What keeps sandboxes from working here at all, in the doctor's words."""
    asked = subprocess.run([sys.executable, "-P", "-m", "retinue", "facts"], stdout=subprocess.PIPE, check=True)
    found = find_refusals(from_json(asked.stdout, Facts), ("sandbox",))
    return [f"{one.probe}: {one.saw}; {one.means}; {one.who}: {one.remedy}" for one in found]


def read_sysctl(name: str) -> int:
    """A kernel setting; without it, no limit."""
    path = Path("/proc/sys") / name.replace(".", "/", 1)
    return int(path.read_text()) if path.exists() else sys.maxsize


def raise_sysctls(count: int) -> dict[str, int]:
    """As root: raise what is too small for so many, and say so; gives what it was before."""
    before = {name: read_sysctl(name) for name in SYSCTLS}
    short = {name: value for name, value in before.items() if value < count + OTHERS}
    for name, value in short.items():
        print(f"root raises {name} from {value} to {2 * (count + OTHERS)} while this runs", flush=True)
        write_sysctl(name, 2 * (count + OTHERS))
    return short


def write_sysctl(name: str, value: int) -> None:
    """As root."""
    (Path("/proc/sys") / name.replace(".", "/", 1)).write_text(str(value))


def read_limits(live: int, pid: int) -> list[Limit]:
    """Every limit that is known to stop sandboxes, and how far it is used; pid: the service's."""
    tasks = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    limits = [Limit(name, tasks, read_sysctl(name)) for name in SYSCTLS[:2]]
    limits += [Limit(name, live, read_sysctl(name)) for name in SYSCTLS[2:]]
    limits.append(Limit("ulimit -u", live, _known(resource.getrlimit(resource.RLIMIT_NPROC)[0])))
    limits += list(_read_pids_cgroups())
    for one in list_own(pid)[1:]:
        most = _known(resource.prlimit(int(one), resource.RLIMIT_NOFILE)[0])
        limits.append(Limit(f"ulimit -n of shard {one}", len(os.listdir(f"/proc/{one}/fd")), most))
    total, free = read_meminfo_kib("MemTotal"), read_meminfo_kib("MemAvailable")
    return [*limits, Limit("memory, KiB", total - free, total)]


def find_short(limits: list[Limit], count: int) -> list[str]:
    """Those that do not allow so many more."""
    need = {"memory, KiB": count * KIB_EACH}
    return [str(one) for one in limits if one.left < need.get(one.name, count) and "ulimit -n" not in one.name]


def _known(value: int) -> int:
    return sys.maxsize if value == resource.RLIM_INFINITY else value


def _read_pids_cgroups() -> list[Limit]:
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        roots = {"": Path("/sys/fs/cgroup"), "pids": Path("/sys/fs/cgroup/pids")}
        if kinds not in roots:
            continue
        group = roots[kinds] / path.lstrip("/")
        most, used = group / "pids.max", group / "pids.current"
        if most.exists() and most.read_text().strip().isdigit():
            found.append(Limit(f"pids.max of {path}", int(used.read_text()), int(most.read_text())))
    return found
