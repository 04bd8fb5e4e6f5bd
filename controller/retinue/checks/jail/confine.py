"""The whole jail: one decision at the start, then the same steps in every child.

`choose_jail` tries everything once in throwaway processes; what works is the rung. Namespaces, or else
system call filter and Landlock; never nothing.
"""

import errno
import os
import platform
import resource
import select
import signal
from dataclasses import dataclass

from retinue.checks.jail import landlock, syscalls
from retinue.checks.jail.namespaces import (
    Inner,
    enter_namespaces,
    fork_in_namespace,
    leave_parents_users,
    leave_shared,
)
from retinue.checks.jail.root import DEVICES, enter_root, mount_private_tmp
from retinue.checks.jail.rules import COMMON, NAMESPACED, NO_FORKS, build_bare_rules
from retinue.checks.jail.seccomp import build_filter, is_supported
from retinue.checks.jail.view import SYSTEM, View, build_view
from retinue.checks.records import Limits
from retinue.errors import PermanentError
from retinue.node import kernel

NAMESPACES = "namespaces"
_OPEN_FILES = 64
_SIGNALS_QUEUED = 128
_PROBE_TIMEOUT_S = 30.0


class JailRefused(PermanentError):
    """This machine gives us nothing to lock a check in."""


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
    """What the warm parent prepares once, so that a child is locked in with few calls."""

    jail: Jail
    view: View
    limits: Limits
    inner: Inner | None
    child_filter: bytes
    """Empty: built by each child, because its own pid stands in it, or no filter is known for this machine."""
    ruleset_fd: int
    """Landlock's; -1 for none."""


# --- the choice -------------------------------------------------------------------------------


def choose_jail(limits: Limits, view: View, wants_namespaces: bool) -> Jail:
    """Find the best rung by trying it in a process that is thrown away.

    Errors: JailRefused when there are neither user namespaces nor a filter for this machine.
    """
    has_filter = is_supported(platform.machine())
    refusal = "namespaces are switched off"
    if wants_namespaces:
        answer = _probe(lambda: _try_namespaces(limits, view))
        if answer in ("counts", "no count"):
            return _describe_namespaces(answer == "counts", has_filter)
        refusal = answer
    if not has_filter:
        raise JailRefused(f"no user namespaces ({refusal}) and no system call filter for {platform.machine()}")
    return _describe_bare(refusal)


def _describe_namespaces(counts_processes: bool, has_filter: bool) -> Jail:
    weaker = []
    if not counts_processes:
        weaker.append("no check may start processes: the kernel counts them per user (before Linux 5.14, or root)")
    if not has_filter:
        weaker.append(f"no system call filter for {platform.machine()}: pathname sockets can be reached")
    rung = NAMESPACES + "".join(f"; {words}" for words in weaker)
    return Jail(rung, True, counts_processes, has_filter, False)


def _describe_bare(refusal: str) -> Jail:
    has_landlock = landlock.read_abi() > 0
    files = (
        "files hidden by Landlock, their names are not" if has_landlock else "no Landlock: all that you may read can be read"
    )
    rung = f"fallback: system call filter; no namespaces ({refusal}); {files}; checks have no /tmp and start no process"
    return Jail(rung, False, False, True, has_landlock)


def _try_namespaces(limits: Limits, view: View) -> str:
    """Do all that the warm parent and one child will do; says whether processes are counted per child."""
    inner = enter_namespaces()
    enter_root(view)
    jail = Jail(NAMESPACES, True, True, is_supported(platform.machine()), False)
    cell = _build_cell(jail, view, limits, inner)
    return _probe(lambda: _try_child(cell), lambda: fork_in_namespace(inner))


def _try_child(cell: Cell) -> str:
    confine_child(cell, -1)
    is_bounded = _can_fork_within(2) and not _can_fork_within(1)
    return "counts" if is_bounded else "no count"


def _can_fork_within(processes_count: int) -> bool:
    """Say whether one more process is allowed under this limit, which the one that asks counts towards."""
    resource.setrlimit(resource.RLIMIT_NPROC, (processes_count, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    try:
        pid = os.fork()
    except BlockingIOError:
        return False
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True


def _probe(attempt, fork=os.fork):  # type: ignore[no-untyped-def]
    raise NotImplementedError
