"""`facts [--to FILE]`: the facts of this node as one line of JSON. What an agent and a Slurm step run."""

import os
import sys
from pathlib import Path

from retinue.doctor.gather import end_cleanly, gather_facts
from retinue.terms.record import to_json


def main(argv: list[str]) -> int:
    """Gather and print, or write the file in one step."""
    end_cleanly()
    match argv:
        case []:
            sys.stdout.buffer.write(to_json(gather_facts(os.environ)) + b"\n")
            sys.stdout.flush()
            return 0
        case ["--to", path]:
            half = Path(path + ".half")
            # In the node directory, which is removed at the end whatever happens to us.
            half.write_bytes(to_json(gather_facts(os.environ, str(half.parent))))
            half.rename(path)
            return 0
    print("usage: retinue facts [--to FILE]", file=sys.stderr)
    return 2
