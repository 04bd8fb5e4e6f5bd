"""What srun says of the nodes of its step, as far as somebody acts on it. Pure.

srun's messages are for people and no promise; what is not understood is nobody's
loss: a node that is silent is found out by its silence.
"""

import re

from retinue.allocation.nodelist import parse_nodelist
from retinue.errors import AllocationError
from retinue.terms.record import Record

NOISE = ("srun: cluster configuration lacks support for cpu binding",)
"""How lines begin that are for nobody to read: this one comes with every start where Slurm binds nothing."""

_ENDED = re.compile(r"srun: error: (?P<nodes>\S+): tasks? [0-9,-]+: (?P<text>.+)")
_FAILED = re.compile(r"srun: error: (?P<text>Node failure) on (?P<nodes>\S+)")
_REFUSED = re.compile(r"srun: error: (?P<text>Task launch for \S+ failed) on node (?P<nodes>[^\s:]+)(?P<more>: .+)?")


class Words(Record, frozen=True):
    """One sentence about some nodes."""

    nodes: tuple[str, ...]
    text: str
    """`Exited with exit code 2`, `Killed`, `Node failure`."""


def parse_srun_words(line: str) -> Words | None:
    """Read one line of srun's stderr; None for everything that is not about the end of tasks on nodes.

    Source: messages of Slurm 22.05.8, as it printed them.
    """
    line = line.strip()
    match = _ENDED.fullmatch(line) or _FAILED.fullmatch(line) or _REFUSED.fullmatch(line)
    if match is None:
        return None
    try:
        nodes = parse_nodelist(match["nodes"])
    except AllocationError:
        return None
    return Words(nodes, match["text"] + (match.groupdict().get("more") or ""))
