"""The rung: the best jail this machine allows, found by trying all of it once.

Namespaces; else a filter of system calls and Landlock; never nothing.
"""

import os
import platform
import resource

from retinue.checks.jail import landlock
from retinue.checks.jail.cell import Jail, build_cell, confine_child, confine_parent, open_proc
from retinue.checks.jail.namespaces import enter_namespaces, fork_in_namespace
from retinue.checks.jail.root import enter_root
from retinue.checks.jail.seccomp import is_supported
from retinue.checks.jail.trial import ANSWER_FD, try_apart
from retinue.checks.jail.view import View
from retinue.checks.records import Limits
from retinue.errors import PermanentError

NAMESPACES = "namespaces"
_COUNTED, _UNCOUNTED, _LOCKED = "ok, processes counted", "ok, processes not counted", "ok"


class JailRefused(PermanentError):
    """This machine gives us nothing to lock a check into."""


def choose_jail(limits: Limits, view: View, wants_namespaces: bool) -> Jail:
    """Find the best rung by trying it in processes that are thrown away.

    Errors: JailRefused when neither user namespaces nor a system call filter can be had.
    """
    has_filter = is_supported(platform.machine())
    refusal = "switched off"
    if wants_namespaces:
        answer = try_apart(lambda: _try_namespaces(limits, view))
        if answer in (_COUNTED, _UNCOUNTED):
            return _describe_namespaces(answer == _COUNTED, has_filter)
        refusal = answer
    if not has_filter:
        raise JailRefused(f"no namespaces ({refusal}) and no system call filter for {platform.machine()}")
    jail = _describe_bare(refusal)
    answer = try_apart(lambda: _try_bare(jail, limits, view))
    if answer != _LOCKED:
        raise JailRefused(f"no namespaces ({refusal}) and no system call filter ({answer})")
    return jail


def _describe_namespaces(counts_processes: bool, has_filter: bool) -> Jail:
    weaker = []
    if not counts_processes:
        weaker.append("checks start no process: the kernel would not count them apart (before Linux 5.14, or as root)")
    if not has_filter:
        weaker.append(f"no system call filter for {platform.machine()}: sockets in visible places can be reached")
    return Jail("; ".join([NAMESPACES, *weaker]), True, counts_processes, has_filter, False)


def _describe_bare(refusal: str) -> Jail:
    has_landlock = landlock.read_abi() > 0
    files = "files are hidden by Landlock, their names are not" if has_landlock else "no Landlock: files can be read"
    words = (f"no namespaces ({refusal})", "system call filter", files, "no /tmp", "checks start no process")
    return Jail("; ".join(words), False, False, True, has_landlock)


def _try_namespaces(limits: Limits, view: View) -> str:
    """Do all that the warm parent and one child will do; says whether processes are counted per child."""
    jail = Jail(NAMESPACES, True, True, is_supported(platform.machine()), False)
    self_fd = enter_namespaces()
    proc_fd = open_proc(jail)
    enter_root(view)
    confine_parent(jail)
    cell = build_cell(jail, view, limits, self_fd, proc_fd)

    def try_child() -> str:
        confine_child(cell, ANSWER_FD, ANSWER_FD)
        return _COUNTED if _can_fork_within(2) and not _can_fork_within(1) else _UNCOUNTED

    return try_apart(try_child, lambda: fork_in_namespace(self_fd))


def _try_bare(jail: Jail, limits: Limits, view: View) -> str:
    confine_parent(jail)
    confine_child(build_cell(jail, view, limits, -1, open_proc(jail)), ANSWER_FD, ANSWER_FD)
    return _LOCKED


def _can_fork_within(processes_count: int) -> bool:
    """Say whether one more process is allowed under this limit, which counts the one that asks."""
    resource.setrlimit(resource.RLIMIT_NPROC, (processes_count, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    try:
        pid = os.fork()
    except BlockingIOError:
        return False
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return True
