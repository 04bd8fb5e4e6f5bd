"""Ports: reserved by binding, never by looking; and the file by which a service names its own.

A reservation is a bound, not listening socket. It is bound without SO_REUSEADDR,
so that no other reservation can share the port, and gets the option afterwards:
from then on a server that sets it may bind and listen beside the reservation,
and a stranger that does not set it is refused (inet_csk_bind_conflict, Linux).
"""

import errno
import os
import random
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress

from retinue.errors import TransientError

LOWEST = 20_000
"""Below are well-known ports and what sites put beside them."""
HIGHEST = 65_535
TRIES = 400
LONGEST_PORT_FILE_BYTES = 64
BLOCK = 100
"""Inner ports of one replica: an engine takes some tens, counting up from the first (vLLM's VLLM_PORT)."""
BLOCK_LOOKED_AT = 4
"""Of its ports that must be free when a block is lent; past those the engine itself counts on."""


def read_ephemeral_range() -> tuple[int, int]:
    """Read the range from which the kernel gives ports to outgoing connections."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low, high = file.read().split()
            return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999  # Linux's own default


def build_candidates(low: int, high: int, dice: random.Random) -> Iterator[int]:
    """Draw ports outside the ephemeral range; inside it only when there is no outside."""
    outside = [*range(LOWEST, min(low, HIGHEST + 1)), *range(max(high + 1, LOWEST), HIGHEST + 1)]
    pool = outside if len(outside) >= TRIES else [*outside, *range(LOWEST, HIGHEST + 1)]
    while True:
        yield dice.choice(pool)


class Ports:
    """The node's reservations: which port each replica had, and which ports strangers took."""

    def __init__(self, dice: random.Random | None = None) -> None:
        self._dice = dice or random.Random()
        self._last: dict[str, int] = {}
        """Replica -> port of its last incarnation: asked for again, so that a TCP service's address rarely moves."""
        self._blocks: dict[str, int] = {}
        """Replica -> first of its inner ports; kept for its next incarnation."""
        self._taken: set[int] = set()
        """Ports on which a stranger answered."""

    def reserve(self, replica: str, host: str) -> tuple[socket.socket, int]:
        """Bind a port on this host and keep it; the caller owns the socket.

        Errors: TransientError when none of many candidates can be bound.
        """
        last = self._last.get(replica)
        if last is not None and last not in self._taken:
            # With the option from the start: our own server's TIME_WAIT connections must not cost it its port.
            with suppress(OSError):
                return self._keep(replica, _bind(host, last, is_shared=True))
        low, high = read_ephemeral_range()
        candidates = build_candidates(low, high, self._dice)
        for port, _ in zip(candidates, range(TRIES), strict=False):
            if port in self._taken:
                continue
            try:
                return self._keep(replica, _bind(host, port, is_shared=False))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise TransientError(f"cannot reserve a port on {host}: {os.strerror(error.errno or 0)}") from error
        raise TransientError(
            f"cannot reserve a port on {host}: {TRIES} candidates outside {low}-{high} were all in use"
        )

    def remember(self, replica: str, port: int) -> None:
        """Note a port that a re-adopted incarnation has."""
        self._last[replica] = port

    def avoid(self, port: int) -> None:
        """Never offer this port again: somebody else answers on it."""
        self._taken.add(port)

    def lend_block(self, replica: str) -> int:
        """Set a block of BLOCK ports aside that no other replica of this node is lent; its first one.

        Nothing is bound: the engine binds what it needs, and skips what a stranger has.
        Errors: TransientError when no block is free.
        """
        if replica in self._blocks:
            return self._blocks[replica]
        low, high = read_ephemeral_range()
        starts = [port for port in range(LOWEST, HIGHEST - BLOCK, BLOCK) if not low - BLOCK < port <= high]
        free = [port for port in starts or range(LOWEST, HIGHEST - BLOCK, BLOCK) if port not in self._blocks.values()]
        self._dice.shuffle(free)
        for port in free:
            if all(_is_free(port + offset) for offset in range(BLOCK_LOOKED_AT)):
                self._blocks[replica] = port
                return port
        raise TransientError(f"cannot find {BLOCK} ports in a row outside {low}-{high} for {replica}")

    def remember_block(self, replica: str, port: int) -> None:
        """Note the block that a re-adopted incarnation has."""
        self._blocks[replica] = port

    def _keep(self, replica: str, reservation: socket.socket) -> tuple[socket.socket, int]:
        port = int(reservation.getsockname()[1])
        self._last[replica] = port
        return reservation, port


def _bind(host: str, port: int, *, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reservation = socket.socket(family, socket.SOCK_STREAM)
    try:
        if is_shared:
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, port))
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        reservation.close()
        raise
    return reservation


def _is_free(port: int) -> bool:
    try:
        _bind("127.0.0.1", port, is_shared=False).close()
    except OSError:
        return False
    return True


def read_port_file(path: str) -> int | None:
    """Read the port a service wrote; None until there is one that can be believed.

    Only a small regular file of our own, never a link: the node directory is private,
    but what the service runs may be anything.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        if status.st_size > LONGEST_PORT_FILE_BYTES:
            return None
        text = os.read(handle, LONGEST_PORT_FILE_BYTES)
    except OSError:
        return None
    finally:
        os.close(handle)
    return parse_port(text)


def parse_port(text: bytes) -> int | None:
    """Parse a whole port number, 1-65535, white space around it allowed; else None."""
    digits = text.strip()
    # Digits only: int() would also take "+1", "1_0" and other alphabets.
    if not digits.isdigit() or len(digits) > 5:
        return None
    port = int(digits)
    return port if 0 < port <= HIGHEST else None
