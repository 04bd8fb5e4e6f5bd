"""What marks an incarnation's processes, and what is said about it when it is over."""

import os

from retinue.node.environment import build_tags
from retinue.node.ladder import Swept
from retinue.node.listeners import read_listeners
from retinue.node.orders import Reaped
from retinue.node.scan import Tree, read_process
from retinue.node.site import Site
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import Record
from retinue.terms.replica import Exited

IN_USE = "in use"
RESERVED_HINT = (
    "[retinue: the port was held by this run's own reservation; a server that does not set SO_REUSEADDR"
    " needs `port_reuse: false`]"
)


class End(Record, frozen=True):
    """How it went, from the ladder and the sweep."""

    reaped: Reaped | None
    """None: the leader itself would not die."""
    swept: Swept
    was_asked: bool
    is_killed_hard: bool
    lived_s: float
    last_lines: str


def build_tree(site: Site, spec: LaunchSpec, pid: int, log_pipe: int) -> Tree:
    """Name the marks by which the processes of an incarnation are found."""
    tags = build_tags(spec, site.join.run_id)
    leader = read_process(pid)
    return Tree(
        leader=pid,
        leader_start=leader.start if leader is not None else 0,
        tags=frozenset(f"{name}={value}".encode() for name, value in tags.items()),
        log_inode=os.fstat(log_pipe).st_ino,
        never=site.never,
        reaper=site.keeper_pid,
    )


def build_exited(site: Site, spec: LaunchSpec, end: End, pids: tuple[int, int]) -> Exited:
    """Say how an incarnation ended.

    Shape: `pids` is the leader's (pid here, host pid); what is left is named by host pid where that is known.
    """
    pid, host_pid = pids
    left = {host_pid if number == pid and host_pid else number for number in end.swept.left}
    if end.reaped is None:
        left.add(host_pid or pid)
    was_pushed = end.was_asked or bool(end.swept.killed)
    return Exited(
        incarnation=spec.incarnation,
        code=end.reaped.code if end.reaped else None,
        signal=end.reaped.signal if end.reaped else None,
        was_asked=end.was_asked,
        is_quick=not end.was_asked and end.lived_s < spec.okay_delay_s,
        last_lines=end.last_lines,
        rung=("namespace" if site.has_namespace else "subreaper") if was_pushed else "",
        is_killed_hard=end.is_killed_hard,
        escapees=end.swept.escapees,
        left=tuple(sorted(left)),
    )


def judge_port(port: int, last_lines: str, *, was_reserved: bool) -> tuple[bool, str]:
    """Say whether a stranger has the port of a tree that is gone, and what to add to its last lines."""
    if read_listeners(port):
        return True, last_lines
    if was_reserved and IN_USE in last_lines:
        return False, f"{last_lines}\n{RESERVED_HINT}"
    return False, last_lines
