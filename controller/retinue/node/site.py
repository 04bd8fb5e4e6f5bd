"""What every incarnation on this node shares, and the reading of secret files."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from retinue.channel.join import Join
from retinue.errors import PermanentError, TransientError
from retinue.node.capture import LogWriter
from retinue.node.exec_probe import ExecProbes
from retinue.node.facts import LagMeter
from retinue.node.keeper_link import Keeper
from retinue.node.ports import Ports
from retinue.node.threads import Threads
from retinue.terms.replica import AnyEvent

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


async def read_secret_files(paths: Mapping[str, str], threads: Threads) -> dict[str, str]:
    """Read secrets on the node, one final newline dropped.

    Errors: PermanentError when one cannot be read, TransientError when it does not come.
    """
    return {name: await _read_secret(name, path, threads) for name, path in paths.items()}


async def _read_secret(name: str, path: str, threads: Threads) -> str:
    where = f"cannot read secret {name} from {path!r}"
    try:
        text = (await threads.run(_read_start, path)).decode()
    except TransientError as error:
        raise TransientError(f"{where}: {error}") from None
    except OSError as error:
        raise PermanentError(f"{where}: {os.strerror(error.errno or 0)}") from None
    except UnicodeDecodeError:
        raise PermanentError(f"{where}: it is not text") from None
    if len(text) > SECRET_BYTES or "\0" in text:
        raise PermanentError(f"{where}: longer than {SECRET_BYTES} bytes, or not text")
    return text.removesuffix("\n")


def _read_start(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(SECRET_BYTES + 1)
