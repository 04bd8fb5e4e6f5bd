"""The one line that a launcher reads from a node."""

import os

from retinue.terms.record import Record, to_json


class NodeReport(Record, frozen=True):
    """How a node ended, said by its outer process, or by the proof that takes its place."""

    retinue_node: str
    clean: bool
    """Two scans in a row found no process of ours, and the node directory is gone."""
    rung: str
    """`namespace` | `subreaper`: how the node's processes were held together; empty when none were started.
    `tag`: they were found at the end, by their environment."""
    left: tuple[int, ...] = ()
    """Host pids that would not die."""
    note: str = ""
    """Why it ended, why the rung is the weaker one, what would not go."""


def print_report(report: NodeReport) -> None:
    """A launcher that is gone already must not cost us the exit code."""
    try:
        os.write(1, to_json(report) + b"\n")
    except OSError:
        pass
