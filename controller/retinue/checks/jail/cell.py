"""What locks one child in: prepared once by the warm parent, done by the child before it knows of any check.

A child without namespaces has the filter and Landlock alone (see `choice` for what is weaker).
"""

import os
import platform
import resource
import signal
from dataclasses import dataclass

from retinue.checks.jail import landlock, syscalls
from retinue.checks.jail.namespaces import fork_in_namespace
from retinue.checks.jail.root import DEVICES, restore
from retinue.checks.jail.rules import COMMON, NAMESPACED, NO_FORKS, build_bare_rules
from retinue.checks.jail.seccomp import build_filter
from retinue.checks.jail.syscalls import Step
from retinue.checks.jail.view import SYSTEM, TMP, View
from retinue.checks.records import Limits

SOCKET_FD, EVENTS_FD = 3, 4
"""The only descriptors of a child, beside the standard ones that lead nowhere."""
_OPEN_FILES = 64
_STACK_BYTES = 64 * 1024**2
"""Deep recursion is the verifier's own business up to here; threads get the usual size by themselves."""


@dataclass(frozen=True, slots=True)
class Jail:
    """What this machine allows."""

    rung: str
    """`namespaces`, or what is weaker and why."""
    is_namespaced: bool
    counts_processes: bool
    """RLIMIT_NPROC counts a child's own processes alone; else no child may start any."""
    has_filter: bool
    has_landlock: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """What every child is locked into; made once, because whatever a child touches first is a page to copy."""

    jail: Jail
    limits: Limits
    parent: int
    """The warm parent's pid, as it sees itself."""
    self_fd: int
    """The warm parent's own pidfd; -1 without namespaces."""
    base_bytes: int
    """Address space of the warm parent, which every child starts with."""
    oom: tuple[int, bytes] | None
    """A descriptor of the warm parent's oom_score_adj, and its usual value; None where it cannot be written."""
    ruleset_fd: int
    """Landlock's; -1 for none."""
    kept_in_tmp: tuple[str, ...]
    """What Python needs below /tmp, as on a developer's machine."""
    first: tuple[Step, ...]
    """While the child may still mount."""
    last: tuple[Step, ...]
    """What takes away the rest."""
    rlimits: tuple[tuple[int, tuple[int, int]], ...]
    processes: tuple[int, int] | None
    """RLIMIT_NPROC, once the child is in a user namespace of its own; None: not counted."""

    def fork(self) -> int:
        """Fork a child: 0 in the child, its pid in the parent; the child is the OOM killer's first choice."""
        if self.oom is None:
            return self._fork()
        fd, usual = self.oom
        os.pwrite(fd, b"1000", 0)
        try:
            return self._fork()
        finally:
            # Back to where one came from needs no privilege. The child, which is left as it is, has no /proc to do so.
            if os.getpid() == self.parent:
                os.pwrite(fd, usual, 0)

    def _fork(self) -> int:
        return fork_in_namespace(self.self_fd) if self.jail.is_namespaced else os.fork()


def open_proc(jail: Jail) -> int:
    """Keep a way to /proc before it is hidden; with namespaces one that stays writable (oom_score_adj)."""
    return syscalls.copy_tree("/proc") if jail.is_namespaced else os.open("/proc", os.O_PATH | os.O_CLOEXEC)


def confine_parent(jail: Jail) -> None:
    """Put on the caller what verifiers are exercised under, and what every child inherits."""
    syscalls.forbid_new_privileges()
    if jail.has_filter:
        syscalls.install_filter(build_filter(COMMON, platform.machine()))


def build_cell(jail: Jail, view: View, limits: Limits, self_fd: int, proc_fd: int) -> Cell:
    """Prepare what children are locked in with, once the caller has all the memory it will need."""
    machine = platform.machine()
    base_bytes = _read_address_space(proc_fd)
    oom = _open_oom_score(proc_fd)
    ruleset_fd = -1
    if jail.has_landlock:
        ruleset_fd = landlock.build_ruleset([*SYSTEM, *view.shown], [f"/dev/{name}" for name in DEVICES])
    for kind, value in (
        (resource.RLIMIT_AS, base_bytes + limits.memory_bytes),
        (resource.RLIMIT_STACK, _STACK_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, _bound(kind, value, value))
    syscalls.forbid_dumps()  # Children inherit it; before it /proc/self would not be the caller's own.
    return Cell(
        jail=jail,
        limits=limits,
        parent=os.getpid(),
        self_fd=self_fd,
        base_bytes=base_bytes,
        oom=oom,
        ruleset_fd=ruleset_fd,
        kept_in_tmp=tuple(view.find_shown_below(TMP)) if jail.is_namespaced else (),
        first=_build_first(jail, view, limits),
        last=_build_last(jail, machine),
        rlimits=(
            (resource.RLIMIT_CPU, _bound(resource.RLIMIT_CPU, *_cpu_seconds(limits))),
            (resource.RLIMIT_FSIZE, _bound(resource.RLIMIT_FSIZE, limits.tmp_bytes, limits.tmp_bytes)),
            (resource.RLIMIT_NOFILE, _bound(resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES)),
        ),
        processes=_bound(resource.RLIMIT_NPROC, limits.pids, limits.pids) if jail.counts_processes else None,
    )


def confine_child(cell: Cell, sock_fd: int, events_fd: int) -> None:
    """Lock the caller, a fresh child, in; its two descriptors become SOCKET_FD and EVENTS_FD.

    Errors: OSError; the child must then end without having read anything.
    """
    trees = {path: syscalls.copy_tree(path) for path in cell.kept_in_tmp} if cell.kept_in_tmp else None
    syscalls.run(cell.first)
    if trees is not None:
        restore(trees)
    if cell.ruleset_fd >= 0:
        landlock.restrict_self(cell.ruleset_fd)
    for fd, place in ((sock_fd, SOCKET_FD), (events_fd, EVENTS_FD)):
        if fd != place:  # dup3(2) refuses what is there already.
            os.dup2(fd, place, inheritable=False)
    for kind, values in cell.rlimits:
        resource.setrlimit(kind, values)
    syscalls.run(cell.last)
    # In force at once: the process counts itself in its new user namespace.
    if cell.processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, cell.processes)
    if not cell.jail.is_namespaced:
        rules = build_bare_rules(os.getpid(), cell.jail.has_landlock)
        syscalls.install_filter(build_filter(rules, platform.machine()))


def lower_limits(cell: Cell, limits: Limits) -> None:
    """Apply one check's own limits; none can be raised above what the child was locked in with."""
    if limits.memory_bytes < cell.limits.memory_bytes:
        size_bytes = cell.base_bytes + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, _bound(resource.RLIMIT_AS, size_bytes, size_bytes))
    if limits.cpu_s < cell.limits.cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, _bound(resource.RLIMIT_CPU, *_cpu_seconds(limits)))


def _build_first(jail: Jail, view: View, limits: Limits) -> tuple[Step, ...]:
    """While the child still may mount."""
    steps = [syscalls.step_death_signal(signal.SIGKILL), syscalls.step_new_session()]
    if jail.is_namespaced:
        kept_count = len(view.find_shown_below(TMP))
        inodes_count = max(64, min(limits.tmp_bytes // 4096, 4096)) + 16 * kept_count
        options = f"size={limits.tmp_bytes},nr_inodes={inodes_count},mode=0700"
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        steps.append(syscalls.step_unshare("own mounts and ipc", syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC))
        steps.append(syscalls.step_mount_tmpfs(TMP, flags, options))
    return tuple(steps)


def _build_last(jail: Jail, machine: str) -> tuple[Step, ...]:
    """What takes away the rest. In its own user namespace, where no id is mapped, a child's processes are counted
    alone, and what was mounted before is not its to change."""
    steps = [syscalls.step_close_from(EVENTS_FD + 1)]
    if jail.is_namespaced:
        steps.append(syscalls.step_unshare("own user namespace", syscalls.CLONE_NEWUSER))
        steps += syscalls.steps_drop_bounding_set()
    steps.append(syscalls.step_drop_capabilities())
    if jail.is_namespaced and jail.has_filter:
        rules = NAMESPACED if jail.counts_processes else (*NAMESPACED, *NO_FORKS)
        steps.append(syscalls.step_install_filter(build_filter(rules, machine)))
    return tuple(steps)


def _cpu_seconds(limits: Limits) -> tuple[int, int]:
    """Soft and hard limit, whole seconds. Pid 1 of a namespace does not hear SIGXCPU; the hard one kills it."""
    soft_s = max(1, int(-(-limits.cpu_s // 1)))
    return soft_s, soft_s + 1


def _bound(kind: int, soft: int, hard: int) -> tuple[int, int]:
    """What is wanted, but never above the hard limit in force."""
    ceiling = resource.getrlimit(kind)[1]
    if ceiling == resource.RLIM_INFINITY:
        return soft, hard
    return min(soft, ceiling), min(hard, ceiling)


def _read_address_space(proc_fd: int) -> int:
    fd = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        return int(os.read(fd, 64).split()[0]) * resource.getpagesize()
    finally:
        os.close(fd)


def _open_oom_score(proc_fd: int) -> tuple[int, bytes] | None:
    """Open the caller's oom_score_adj; None where it cannot be raised and taken back."""
    try:
        fd = os.open("self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC, dir_fd=proc_fd)
    except OSError:
        return None
    try:
        usual = os.pread(fd, 16, 0).strip()
        os.pwrite(fd, b"1000", 0)
        os.pwrite(fd, usual, 0)
    except OSError:
        os.close(fd)
        return None
    return fd, usual
