"""What every incarnation on this node shares, and the reading of secret files."""

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

from retinue.channel.join import Join
from retinue.errors import PermanentError, TransientError
from retinue.node.capture import LogWriter
from retinue.node.exec_probe import ExecProbes
from retinue.node.facts import LagMeter
from retinue.node.keeper_link import Keeper
from retinue.node.ports import Ports
from retinue.terms.replica import AnyEvent

SECRET_WAIT_S = 10.0
"""A secret on a hung file system refuses the launch; it never holds up the agent."""
SECRET_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """One node as its incarnations see it. Made once, when the keeper's inventory is in."""

    join: Join
    keeper: Keeper
    writer: LogWriter
    ports: Ports
    exec_probes: ExecProbes
    lag: LagMeter
    pool: Executor
    """Threads for scans of /proc; nothing else, so that no file system can fill them."""
    has_namespace: bool
    never: frozenset[int]
    """Pids no sweep may touch: agent and keeper."""
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


async def read_secret_files(paths: Mapping[str, str]) -> dict[str, str]:
    """Read secrets on the node, one final newline dropped.

    Errors: PermanentError when one cannot be read, TransientError when it does not come.
    """
    return {name: await _read_secret(name, path) for name, path in paths.items()}


async def _read_secret(name: str, path: str) -> str:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes | OSError] = loop.create_future()

    def settle(outcome: bytes | OSError) -> None:
        if not done.done():
            done.set_result(outcome)

    # A thread of its own that nobody joins: one that hangs in the kernel must not hang the agent's end.
    threading.Thread(target=_read_into, args=(path, loop, settle), daemon=True).start()
    try:
        outcome = await asyncio.wait_for(done, SECRET_WAIT_S)
    except TimeoutError:
        raise TransientError(f"cannot read secret {name} from {path!r}: no answer in {SECRET_WAIT_S:g} s") from None
    if isinstance(outcome, OSError):
        raise PermanentError(f"cannot read secret {name} from {path!r}: {os.strerror(outcome.errno or 0)}")
    try:
        text = outcome.decode()
    except UnicodeDecodeError:
        text = "\0"
    if len(outcome) > SECRET_BYTES or "\0" in text:
        raise PermanentError(f"cannot read secret {name} from {path!r}: longer than {SECRET_BYTES} bytes, or not text")
    return text.removesuffix("\n")


def _read_into(path: str, loop: asyncio.AbstractEventLoop, settle: Callable[[bytes | OSError], None]) -> None:
    outcome: bytes | OSError
    try:
        with open(path, "rb") as file:
            outcome = file.read(SECRET_BYTES + 1)
    except OSError as error:
        outcome = error
    try:
        loop.call_soon_threadsafe(settle, outcome)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return
