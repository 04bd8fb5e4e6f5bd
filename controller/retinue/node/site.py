"""What every incarnation on this node shares."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from retinue.channel.join import Join
from retinue.node.capture import LogWriter
from retinue.node.exec_probe import ExecProbes
from retinue.node.facts import LagMeter
from retinue.node.gpus import ReadGpus
from retinue.node.keeper_link import Keeper
from retinue.node.ports import Ports
from retinue.node.threads import Threads
from retinue.terms.replica import AnyEvent


class Writer(LogWriter, Protocol):
    """The writer thread of this process."""

    @property
    def lost_lines(self) -> int: ...
    @property
    def is_hung(self) -> bool: ...
    def stuck_s(self, now_s: float) -> float: ...
    def call(self, name: str, work: Callable[[], None]) -> object: ...
    def flush(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class Site:
    """One node as its incarnations see it. Made once, when the keeper's inventory is in."""

    join: Join
    keeper: Keeper
    writer: Writer
    ports: Ports
    exec_probes: ExecProbes
    lag: LagMeter
    read_gpus: ReadGpus
    threads: Threads
    """For scans of /proc and reads of secrets: what may hang."""
    has_namespace: bool
    never: frozenset[int]
    """Pids no sweep may touch: agent and keeper."""
    keeper_pid: int
    own_env: Mapping[str, str]
    nodes: tuple[str, ...]
    address: str
    """The node's address for services that `listen: node`."""
    report: Callable[[str, AnyEvent], None]
    """(replica, what happened)"""
    on_down: Callable[[str, int, str], None]
    """(replica, incarnation, cause): its leader is gone; the gateway must know before anyone else."""
    on_change: Callable[[], None]
    """Something that the next agent has to know changed."""

    def look_at_run_dir(self) -> None:
        """Ask the run directory for a sign of life; a second later the writer knows whether it hangs.

        Asked even when nothing is left to write: what is to end may have files open there.
        """

        def look() -> None:
            os.stat(self.join.attempt_dir)

        self.writer.call("look", look)
