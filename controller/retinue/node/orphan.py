"""A node without a controller: after the grace it ends itself, and cancels the job only when the batch host is gone.

Silence is not death: a node that is cut off sees just what one sees whose batch host burnt down. So Slurm is asked
once, and where it does not know, the gateways of other nodes are asked whether their agents have a controller. A
node that reaches neither leaves the job alone. Standard library and records only.
"""

import asyncio
import enum
import os
import random
import re
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence

from retinue.channel.context import build_hop_contexts
from retinue.channel.join import Join
from retinue.channel.messages import Peer
from retinue.errors import TransientError
from retinue.gateway.control import HAS_CONTROLLER, HAS_NONE, WHETHER_CONTROLLER
from retinue.node.threads import Threads

QUERY_S = 9.5
"""For one command of Slurm; just below what work beside the loop may take (`threads.LIMIT_S`)."""
PEER_S = 3.0
ADDRESSES_MAX = 3
PEERS_MAX = 16
"""Other nodes that are asked, chosen by chance: all of a large run ask at the same time."""
OWN_OPTIONS = ("SCONTROL_", "SCANCEL_", "SLURM_CLUSTERS")
"""Names in the user's environment that change what Slurm's commands do."""


class Word(enum.Enum):
    """What somebody says of the batch host or its controller."""

    GONE = "gone"
    """Slurm: the host is down. Nodes: some answered, and none has a controller."""
    THERE = "there"
    """Nodes: one has a controller."""
    UNKNOWN = "unknown"
    """No answer, or one from which nothing follows: that Slurm has not noticed yet looks like health."""


_LEFT_ALONE = {
    Word.THERE: "another node has a controller",
    Word.UNKNOWN: "neither Slurm nor another node could say that the batch host is gone",
}
_STATE = re.compile(r"\bState=([A-Z_+]+)(\*?)")
_GONE = {"DOWN", "FAIL", "POWERED_DOWN", "POWERING_DOWN"}


def decide_cancel(slurm: Word, nodes: Word) -> bool:
    """Say whether this node may cancel the job."""
    return slurm is Word.GONE or (slurm is Word.UNKNOWN and nodes is Word.GONE)


def read_state(text: str) -> Word:
    """Read `scontrol show node -o HOST`.

    Source: NODE STATE CODES, sinfo(1); a state in which Slurm knows the host to be off or unreachable for good.
    """
    state = _STATE.search(text)
    return Word.GONE if state and _GONE & set(state[1].split("+")) else Word.UNKNOWN


def join_words(answers: Iterable[bool | None]) -> Word:
    """Sum up what other nodes said: whether they have a controller; None for one that was not reached."""
    said = [answer for answer in answers if answer is not None]
    if not said:
        return Word.UNKNOWN
    return Word.THERE if any(said) else Word.GONE


async def judge_orphan(
    join: Join, peers: Mapping[str, Peer], threads: Threads, env: Mapping[str, str], is_lost: Callable[[], bool]
) -> str | None:
    """Judge whether the job is lost with its batch host, and cancel it then; return in words what was found.

    Shape:  None when the controller came back meanwhile: then nothing is to end.
    """
    batch = join.batch_host
    if batch is None or batch.host == join.node:
        return "" if is_lost() else None
    slurm = read_state(await _ask_slurm(threads, batch.ask_argv, env))
    others = [peer for name, peer in peers.items() if name not in (batch.host, join.node)]
    asked = random.sample(others, min(PEERS_MAX, len(others))) if slurm is Word.UNKNOWN else []
    _, context = build_hop_contexts(join.run_id, join.ca_pem, join.cert_pem, join.key_pem)
    nodes = join_words(await asyncio.gather(*(ask_peer(peer, context) for peer in asked)))
    if not is_lost():
        return None
    if not decide_cancel(slurm, nodes):
        return f"the job is left alone: {_LEFT_ALONE[nodes]}"
    await _ask_slurm(threads, batch.cancel_argv, env)
    why = "Slurm says that it is down" if slurm is Word.GONE else "no other node has a controller"
    return f"the job is cancelled: the batch host {batch.host} is gone: {why}"


async def _ask_slurm(threads: Threads, argv: Sequence[str], env: Mapping[str, str]) -> str:
    try:
        return await threads.run(run_command, argv, env)
    except (TransientError, OSError):
        return ""


async def ask_peer(peer: Peer, context: ssl.SSLContext, limit_s: float = PEER_S) -> bool | None:
    """Ask a node's gateway whether its agent has a controller; None when no address of it answers."""
    for address in peer.addresses[:ADDRESSES_MAX]:
        try:
            async with asyncio.timeout(limit_s):
                status = await _read_status(peer, address, context)
        except (OSError, TimeoutError, ValueError):
            continue
        if status in (HAS_CONTROLLER, HAS_NONE):
            return status == HAS_CONTROLLER
    return None


async def _read_status(peer: Peer, address: str, context: ssl.SSLContext) -> int:
    """Send one request and read the status of its answer.

    Errors: OSError, ValueError when what answers is no gateway of this run.
    """
    reader, writer = await asyncio.open_connection(address, peer.hop_port, ssl=context, server_hostname=peer.node)
    try:
        writer.write(f"GET {WHETHER_CONTROLLER} HTTP/1.1\r\nHost: {peer.node}\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
        return int(line.split()[1]) if line.startswith(b"HTTP/") else 0
    except IndexError:
        return 0
    finally:
        writer.transport.abort()


def run_command(argv: Sequence[str], env: Mapping[str, str], limit_s: float = QUERY_S) -> str:
    """Run a command of Slurm and return what it printed; empty when it failed or said nothing in time.

    Errors: OSError when it cannot be started.
    """
    plain = {name: value for name, value in env.items() if not name.startswith(OWN_OPTIONS)} | {"LC_ALL": "C"}
    child = subprocess.Popen(
        argv,
        env=plain,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with child:
        try:
            out, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return ""
    return out.decode(errors="replace") if child.returncode == 0 else ""
