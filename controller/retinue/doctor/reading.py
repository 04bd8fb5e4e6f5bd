"""What can simply be read: limits, control group, mounts, names. What cannot be read is left empty, never an error."""

import os
import pwd
import resource
from collections.abc import Iterable
from pathlib import Path

from retinue.doctor.records import Cgroup, Storage, Trial

LIMITS = {
    "nproc": resource.RLIMIT_NPROC,
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "data": resource.RLIMIT_DATA,
    "fsize": resource.RLIMIT_FSIZE,
}
CGROUPS = Path("/sys/fs/cgroup")
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io")
_ALL_IDS = 4294967295


def read_text(path: str | Path) -> str:
    """The content of a small file, without blanks around it; empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_limits() -> dict[str, tuple[int, int]]:
    """This process's resource limits."""
    return {name: resource.getrlimit(number) for name, number in LIMITS.items()}


def read_system() -> str:
    """The distribution's own name."""
    for line in read_text("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def is_in_user_namespace() -> bool:
    """True unless all ids are mapped to themselves."""
    return read_text("/proc/self/uid_map").split() != ["0", "0", str(_ALL_IDS)]


def is_in_container() -> bool:
    """A container that says so."""
    return any(os.path.exists(mark) for mark in CONTAINER_MARKS)


def has_seccomp_filter() -> bool:
    """A filter of system calls is on this process already."""
    return any(line.split() == ["Seccomp:", "2"] for line in read_text("/proc/self/status").splitlines())


# --- mounts ----------------------------------------------------------------------------


def parse_mounts(text: str) -> list[tuple[str, str]]:
    """Parse mountinfo into (mount point, file system), in the order of mounting. Source: proc(5)."""
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        if right:
            found.append((_unescape(left.split()[4]), right.split()[0]))
    return found


def _unescape(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def find_kind(path: str, mounts: Iterable[tuple[str, str]]) -> str:
    """The file system that a path is on: of the longest mount point above it, the last one mounted."""
    best, kind = "", ""
    for point, found in mounts:
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, kind = point, found
    return kind


def find_proc_masks(mounts: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """What is mounted below /proc; binfmt_misc is where every system has it, and hides nothing."""
    return tuple(
        point for point, kind in mounts if point.startswith("/proc/") and kind not in ("binfmt_misc", "autofs")
    )


def build_storage(path: str, kind: str, trial: Trial) -> Storage:
    """Put together what is known of a place; `trial` holds free bytes, all bytes, free inodes."""
    if not trial.is_ok:
        return Storage(path, kind, reason=trial.text)
    free, size, inodes = (int(word) for word in trial.text.split())
    return Storage(path, kind, free, size, inodes)


# --- control group ---------------------------------------------------------------------


def read_cgroup(root: Path = CGROUPS, own: str | None = None) -> Cgroup:
    """The control group of this process, and the limits of it and of those above."""
    text = read_text("/proc/self/cgroup") if own is None else own
    by_controller = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        by_controller.update(dict.fromkeys(controllers.split(","), path))
    if not by_controller:
        return Cgroup()
    if set(by_controller) == {""}:
        path = by_controller[""]
        place = root / path.lstrip("/")
        can_write = all(os.access(place / name, os.W_OK) for name in (".", "cgroup.procs", "cgroup.subtree_control"))
        pids, memory = _read_smallest(root, path, "pids.max"), _read_smallest(root, path, "memory.max")
        return Cgroup("v2", path, can_write, pids, memory)
    version = "hybrid" if "" in by_controller else "v1"
    pids_path, memory_path = by_controller.get("pids", "/"), by_controller.get("memory", "/")
    place = root / "pids" / pids_path.lstrip("/")
    return Cgroup(
        version,
        pids_path,
        os.access(place, os.W_OK),
        _read_smallest(root / "pids", pids_path, "pids.max"),
        _read_smallest(root / "memory", memory_path, "memory.limit_in_bytes"),
    )


def _read_smallest(root: Path, path: str, name: str) -> int | None:
    """The smallest limit of a group and of all groups above it; None when none has one."""
    place = root / path.lstrip("/")
    found = []
    for group in (place, *place.parents):
        text = read_text(group / name)
        # Version 1 writes "unlimited" as the largest number of pages.
        if text.isdigit() and int(text) < 1 << 62:
            found.append(int(text))
        if group == root:
            break
    return min(found, default=None)


# --- ids -------------------------------------------------------------------------------


def read_user() -> str:
    """This user's login name; the number where nobody knows one."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def read_subuid_ranges(path: str = "/etc/subuid") -> tuple[tuple[int, int], ...]:
    """This user's ranges; those that only a directory service knows are not seen."""
    names = {read_user(), str(os.getuid())}
    found = []
    for line in read_text(path).splitlines():
        parts = line.split(":")
        if len(parts) == 3 and parts[0] in names and parts[1].isdigit() and parts[2].isdigit():
            found.append((int(parts[1]), int(parts[2])))
    return tuple(found)
