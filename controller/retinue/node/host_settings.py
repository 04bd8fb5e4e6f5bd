"""The kernel settings of this host that retinue depends on, in one place, and whether one has changed.

A sandbox cannot change any of them. So one that changes while a run goes on is somebody's doing: an admin's, or that
of a program that got out. Reads /proc/sys, which never hangs; changes nothing. Inside a keeper's namespaces
`user.max_*` and, from Linux 6.14 on, `kernel.pid_max` are the namespace's own.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from retinue.terms.record import DecodeError, Record, from_json, to_json

SETTINGS = (
    # Whom the kernel starts as root: the classic way out of a container.
    "kernel.core_pattern",
    "kernel.core_pipe_limit",
    "kernel.modprobe",
    "kernel.hotplug",
    "kernel.modules_disabled",
    "kernel.usermodehelper.bset",
    "kernel.usermodehelper.inheritable",
    "fs.binfmt_misc.status",
    "fs.suid_dumpable",
    # What keeps processes of different users, and of one user, apart.
    "kernel.apparmor_restrict_unprivileged_userns",
    "kernel.dmesg_restrict",
    "kernel.io_uring_disabled",
    "kernel.kptr_restrict",
    "kernel.perf_event_paranoid",
    "kernel.randomize_va_space",
    "kernel.sysrq",
    "kernel.unprivileged_bpf_disabled",
    "kernel.unprivileged_userns_clone",
    "kernel.yama.ptrace_scope",
    "vm.mmap_min_addr",
    "vm.unprivileged_userfaultfd",
    "fs.protected_fifos",
    "fs.protected_hardlinks",
    "fs.protected_regular",
    "fs.protected_symlinks",
    # How much of each there is.
    "kernel.keys.maxbytes",
    "kernel.keys.maxkeys",
    "kernel.pid_max",
    "kernel.threads-max",
    "fs.inotify.max_user_instances",
    "fs.inotify.max_user_watches",
    "fs.mount-max",
    "fs.nr_open",
    "fs.pipe-max-size",
    "fs.pipe-user-pages-hard",
    "fs.pipe-user-pages-soft",
    "user.max_cgroup_namespaces",
    "user.max_ipc_namespaces",
    "user.max_mnt_namespaces",
    "user.max_net_namespaces",
    "user.max_pid_namespaces",
    "user.max_user_namespaces",
    "user.max_uts_namespaces",
    "vm.max_map_count",
    "vm.overcommit_memory",
    # Where the gateway's port is looked for.
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
)
ROOT = Path("/proc/sys")
BASELINE = "host-settings.json"
"""Below the node directory: what the settings were when the node's first agent started."""
PERIOD_S = 30.0


class Drift(Record, frozen=True):
    """One setting that is not what it was."""

    name: str
    before: str
    """Empty: the kernel did not have it."""
    now: str
    """Empty: the kernel does not have it any more."""


def read_settings(names: Iterable[str] = SETTINGS, root: Path = ROOT) -> dict[str, str]:
    """Read settings; those that this kernel does not have, or does not show, are left out."""
    found = {}
    for name in names:
        try:
            with open(root / name.replace(".", "/"), encoding="utf-8", errors="replace") as file:
                found[name] = " ".join(file.read().split())
        except OSError:
            continue
    return found


def find_drift(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[Drift, ...]:
    """Name what differs, sorted."""
    names = sorted({*before, *now})
    return tuple(
        Drift(name, before.get(name, ""), now.get(name, "")) for name in names if before.get(name) != now.get(name)
    )


class DriftWatch:
    """Tells each change once."""

    def __init__(self, seen: Mapping[str, str], root: Path = ROOT) -> None:
        self._seen = dict(seen)
        self._root = root

    def find_new(self) -> tuple[Drift, ...]:
        """Look again; what changed since the last look, changes back included."""
        now = read_settings(root=self._root)
        found = find_drift(self._seen, now)
        self._seen = now
        return found


def write_baseline(node_dir: str, root: Path = ROOT) -> dict[str, str]:
    """Keep what the settings are now, unless an earlier agent has; return what is kept.

    Errors: OSError when the node directory is full or gone.
    """
    kept = read_baseline(node_dir)
    if kept is not None:
        return kept
    found = read_settings(root=root)
    path = Path(node_dir, BASELINE)
    half = path.with_suffix(".half")
    half.touch(mode=0o600)
    half.write_bytes(to_json(found))
    os.replace(half, path)
    return found


def read_baseline(node_dir: str) -> dict[str, str] | None:
    """What the settings were at the start of this node; None when nobody wrote it down."""
    try:
        return from_json(Path(node_dir, BASELINE).read_bytes(), dict[str, str])
    except (OSError, DecodeError):
        return None


def has_drifted(baseline: Mapping[str, str], root: Path = ROOT) -> tuple[Drift, ...]:
    """Say which settings are not what they were; empty (false) when all are.

    For a service that must not start hostile code on a changed host: with `read_baseline(RETINUE_NODE_DIR)`, or alone
    with what `read_settings()` said when it started.
    """
    return find_drift(baseline, read_settings(root=root))
