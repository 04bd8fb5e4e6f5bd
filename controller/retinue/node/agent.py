"""`agent JOIN --keeper-fd N`: an agent with its real ends.

The only module of this half of the room that names other rooms' parts.

Standard library and records only: every node pays for what is imported here.
"""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from retinue import __version__
from retinue.allocation.nodelist import parse_nodelist
from retinue.channel.client import AgentLink
from retinue.channel.join import Join, read_join
from retinue.errors import AllocationError
from retinue.gateway.link import GatewayLink
from retinue.journal.writer import Writer
from retinue.node.agent_process import AgentProcess, Ends
from retinue.node.settings import GATEWAY_SOCKET


def run_agent(join_path: str, keeper_fd: int) -> int:
    """Be the agent of this node until its keeper ends it.

    Shape:  exit code 0 when the keeper went away, 70 after a bug (the keeper starts another one).
    Errors: PermanentError when the join file cannot be read.
    """
    join = read_join(Path(join_path))
    # scancel signals every process of a job; the agent ends when the keeper says so, and not before its services.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=keeper_fd) as channel:
        channel.set_inheritable(False)
        return asyncio.run(_run(join, channel))


def main(argv: list[str]) -> int:
    """`agent JOIN --keeper-fd N`; only the keeper runs this."""
    match argv:
        case [join_path, "--keeper-fd", number] if number.isdigit():
            return run_agent(join_path, int(number))
    print("usage: retinue agent JOIN --keeper-fd N", file=sys.stderr, flush=True)
    return 2


async def _run(join: Join, channel: socket.socket) -> int:
    ends = Ends(
        writer=Writer(),
        build_dialer=lambda build_hello, on_message, on_change: AgentLink(join, build_hello, on_message, on_change),
        build_gateway=lambda on_facts: GatewayLink(f"{join.node_dir}/{GATEWAY_SOCKET}", join.node, on_facts),
        nodes=find_nodes(join.node, os.environ.get("SLURM_JOB_NODELIST", "")),
        version=__version__,
        own_env=dict(os.environ),
    )
    return await AgentProcess(join, channel, ends).run()


def find_nodes(own: str, nodelist: str) -> tuple[str, ...]:
    """Name the nodes that are never reached through a proxy; the own one alone when the list cannot be read."""
    try:
        names = parse_nodelist(nodelist) if nodelist else ()
    except AllocationError:
        names = ()
    return tuple(dict.fromkeys([own, *names]))
