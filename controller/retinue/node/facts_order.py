"""The controller asks what this node is like: `python -m retinue facts`, run by the keeper, for a bounded time.

In a process of its own because the probes fork, mount and wait; below the keeper because that is where services live.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from retinue.channel.messages import AskFacts, NodeFacts
from retinue.node.exec_probe import ProbeCommand
from retinue.node.site import Site
from retinue.terms.record import DecodeError, from_json
from retinue.terms.replica import Verdict

LIMIT_S = 45.0
"""More than all probes together may take, and the start of the interpreter from a cold file system."""


async def answer_facts(site: Site, order: AskFacts, say: Callable[[NodeFacts], None]) -> None:
    """Look, and say what was found, once; what went wrong is an answer too."""
    came_utc = time.time()
    path = Path(site.join.node_dir, f"facts-{order.question}.json")
    argv = (sys.executable, "-P", "-m", "retinue", "facts", "--to", str(path))
    command = ProbeCommand(argv, dict(site.own_env), site.join.node_dir, LIMIT_S)
    answer = await site.exec_probes.ask("node", f"facts-{order.question}", command, lambda: 0.0)
    facts: dict[str, Any] = {}
    error = "" if answer.verdict is Verdict.PASS else answer.cause
    try:
        facts = from_json(path.read_bytes(), dict[str, Any]) if not error else {}
    except (OSError, DecodeError) as problem:
        error = f"cannot read what the probes wrote: {problem}"
    for left in (path, Path(f"{path}.half")):
        with suppress(OSError):
            os.unlink(left)
    say(NodeFacts(order.question, facts, error, came_utc, time.time()))
