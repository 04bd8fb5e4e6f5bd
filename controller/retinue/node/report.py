"""The one line that a launcher reads from a node."""

import os

from retinue.terms.record import Record, replace, to_json

LINE_BYTES = 1000
"""srun passes at most 1,024 bytes on at a time, and another node's may come in between; seen with 22.05."""
LEFT_MAX = 40
GAP = " ... "


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
    asked_by: str = ""
    """The signal that asked its outer process for the end, `SIGTERM`; empty when none did."""


def print_report(report: NodeReport) -> None:
    """A launcher that is gone already must not cost us the exit code."""
    try:
        os.write(1, build_line(report))
    except OSError:
        pass


def build_line(report: NodeReport) -> bytes:
    """Say the report in one line that no launcher breaks: some pids and the middle of the note are left out."""
    short = replace(report, left=report.left[:LEFT_MAX])
    line = to_json(short) + b"\n"
    half = LINE_BYTES // 2
    while len(line) > LINE_BYTES and half:
        # In steps: escapes make some characters longer than one byte.
        half = half * 3 // 4
        note = f"{report.note[:half]}{GAP}{report.note[len(report.note) - half :]}" if half else ""
        line = to_json(replace(short, note=note)) + b"\n"
    return line
