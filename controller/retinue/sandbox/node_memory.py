"""How much memory this node, or the control group that we are in, has and has left.

Reads /proc and /sys/fs/cgroup; what cannot be read does not limit.
"""

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_V1_UNLIMITED_BYTES = 2**60


def read_available_bytes(proc: Path = Path("/proc"), cgroups: Path = CGROUPS) -> int:
    """What can still be used before something is killed for memory."""
    own = parse_meminfo(_read(proc / "meminfo"), "MemAvailable")
    return min([own, *(limit - used for limit, used in read_groups(proc, cgroups))])


def read_limit_bytes(proc: Path = Path("/proc"), cgroups: Path = CGROUPS) -> int:
    """What there is altogether."""
    own = parse_meminfo(_read(proc / "meminfo"), "MemTotal")
    return min([own, *(limit for limit, _ in read_groups(proc, cgroups))])


def parse_meminfo(text: str, name: str) -> int:
    """Take one line of /proc/meminfo, in bytes. Source: proc_meminfo(5)."""
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 2**62


def read_groups(proc: Path, cgroups: Path) -> list[tuple[int, int]]:
    """The limit, and what is used of it, of each control group from ours up that has one.

    What the page cache holds of files and can be let go counts as not used; a tmpfs' pages cannot and do.
    """
    found = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if number == "0" and not kinds:
            found += _read_chain(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            place = cgroups / "memory"
            found += _read_chain(place, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return found


def _read_chain(root: Path, path: str, limit_name: str, used_name: str, cache_name: str) -> list[tuple[int, int]]:
    found = []
    place = root / path.lstrip("/")
    while place != root and root in place.parents:
        limit, used = _read(place / limit_name).strip(), _read(place / used_name).strip()
        if limit.isdigit() and used.isdigit() and int(limit) < _V1_UNLIMITED_BYTES:
            found.append((int(limit), int(used) - _parse_stat(_read(place / "memory.stat"), cache_name)))
        place = place.parent
    return found


def _parse_stat(text: str, name: str) -> int:
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
