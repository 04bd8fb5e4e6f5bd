"""Ask one probe once: a verdict and a cause.

FAIL means the replica did not answer as it should, a timeout included (Kubernetes).
UNKNOWN means it could not be asked: no descriptors, or our own loop was late.
Plain sockets to this node only: no proxy is ever looked at. Never reports, never counts.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from retinue.node.listeners import Ownership
from retinue.terms.launch import ProbeSpec
from retinue.terms.replica import Verdict

UNASKABLE = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EPERM, errno.ENETUNREACH}
)
"""What our side lacks; says nothing about the replica. EADDRNOTAVAIL: no ephemeral port is left."""
LATE_S = 1.0
"""A loop this late cannot tell a slow replica from its own slowness."""
HEAD_LIMIT = 64 * 1024
BODY_LIMIT = 10 * 1024
"""Kubernetes reads this much and no more."""
BODY_WAIT_S = 0.2


class Answer(NamedTuple):
    """What one ask gave."""

    verdict: Verdict
    cause: str = ""


CheckOwner = Callable[[int, str], Awaitable[Ownership]]
"""(port, address) -> whose socket listens there."""


class Target(NamedTuple):
    """Where a replica is asked."""

    addresses: tuple[str, ...]
    """Tried in order: 127.0.0.1 then ::1, or the node's address."""
    port: int | None
    """None: the service has not said yet."""
    check_owner: CheckOwner


async def probe_port(spec: ProbeSpec, target: Target, read_lag_s: Callable[[], float]) -> Answer:
    """Ask an HTTP or TCP probe once.

    Units: read_lag_s gives the worst lateness of our loop since this ask began.
    """
    port = spec.port or target.port
    if port is None:
        return Answer(Verdict.FAIL, "the service has not told its port yet")
    try:
        async with asyncio.timeout(spec.timeout_s):
            return await _ask(spec, target, port)
    except TimeoutError:
        if read_lag_s() > LATE_S:
            return Answer(Verdict.UNKNOWN, "this agent's own loop was late")
        return Answer(Verdict.FAIL, f"no answer on port {port} within {spec.timeout_s:g} s")
    except OSError as error:
        return _translate(error, f"port {port}")
    except ValueError as error:
        return Answer(Verdict.FAIL, f"port {port} does not speak HTTP: {error}")


def _translate(error: OSError, where: str) -> Answer:
    verdict = Verdict.UNKNOWN if error.errno in UNASKABLE else Verdict.FAIL
    words = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    return Answer(verdict, f"{where}: {words}")


async def _ask(spec: ProbeSpec, target: Target, port: int) -> Answer:
    reader, writer, address = await connect(target.addresses, port)
    try:
        owner = await target.check_owner(port, address)
        if owner.holder is None and not owner.is_unreadable:
            return Answer(Verdict.FAIL, owner.cause)
        if spec.http_path is None:
            return Answer(Verdict.PASS)
        return await _get(spec.http_path, address, port, reader, writer)
    finally:
        writer.close()


async def connect(addresses: tuple[str, ...], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """Connect to the first address that accepts; the first refusal is the one that is told."""
    first: OSError | None = None
    for address in addresses:
        try:
            reader, writer = await asyncio.open_connection(address, port, limit=HEAD_LIMIT)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            first = first or error
            continue
        return reader, writer, address
    raise first or OSError(errno.ECONNREFUSED, "no address to ask")


async def _get(
    path: str, address: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Answer:
    host = f"[{address}]" if ":" in address else address
    path = path if path.startswith("/") else f"/{path}"
    head = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: retinue-probe\r\n"
    writer.write(f"{head}Accept: */*\r\nConnection: close\r\n\r\n".encode("ascii", "strict"))
    await writer.drain()
    status, reason = parse_status_line(await _read_line(reader))
    await _drink_body(reader)
    if 200 <= status < 400:
        return Answer(Verdict.PASS)
    return Answer(Verdict.FAIL, f"GET {path} on port {port} answered {status} {reason}".rstrip())


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readline()  # ValueError when longer than the stream's limit
    if not line.endswith(b"\n"):
        raise ConnectionResetError(errno.ECONNRESET, "closed before a status line")
    return line


async def _drink_body(reader: asyncio.StreamReader) -> None:
    """Take what comes at once, so that a small server's last write does not fail and fill its log."""
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            taken = 0
            while taken < HEAD_LIMIT + BODY_LIMIT and (part := await reader.read(BODY_LIMIT)):
                taken += len(part)
    except (TimeoutError, OSError):
        return


def parse_status_line(line: bytes) -> tuple[int, str]:
    """Parse `HTTP/1.1 200 OK`.

    Errors: ValueError quotes what came instead, 40 bytes of it.
    """
    parts = line.decode("latin-1").strip().split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/") or not (parts[1].isascii() and parts[1].isdigit()):
        raise ValueError(f"got {line[:40]!r}")
    return int(parts[1]), parts[2] if len(parts) > 2 else ""
