"""Socket addresses as the kernel has them, and this host's own ones. `parse` functions are pure.

An address is its packed bytes (4 or 16): two spellings of one address are one.
"""

import ipaddress
import struct
from collections.abc import Callable
from typing import NamedTuple

from retinue.egress import numbers as n

SOCKADDR_MAX = 128
"""sizeof(struct sockaddr_storage): the kernel takes no longer one."""
_MAPPED = b"\0" * 10 + b"\xff\xff"
_LOOPBACK6 = b"\0" * 15 + b"\1"
_ANY = (b"\0" * 4, b"\0" * 16)
FIB_TRIE = "/proc/net/fib_trie"
IF_INET6 = "/proc/net/if_inet6"


class Place(NamedTuple):
    """Where a call wants to go."""

    address: bytes
    """4 bytes also for an IPv4 address written as IPv6 (`::ffff:10.1.2.3`)."""
    port: int

    def text(self) -> str:
        return str(ipaddress.ip_address(self.address))


def parse_place(raw: bytes, family: int) -> Place | None:
    """Read a sockaddr as a socket of the kernel would that takes it for this family; None: too short for it."""
    if family == n.AF_INET and len(raw) >= 16:
        port, address = struct.unpack_from("!2xH4s", raw)
        return Place(address, port)
    if family == n.AF_INET6 and len(raw) >= 24:
        port, address = struct.unpack_from("!2xH4x16s", raw)
        return Place(address[12:] if address.startswith(_MAPPED) else address, port)
    return None


def is_loopback(address: bytes) -> bool:
    """The kernel takes 0.0.0.0 and :: as a destination for loopback."""
    if len(address) == 4:
        return address[0] == 127 or address in _ANY
    return address == _LOOPBACK6 or address in _ANY


def parse_fib_trie(text: str) -> set[bytes]:
    """Find the local IPv4 addresses, secondary ones too; broadcast addresses are no hosts."""
    found: set[bytes] = set()
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "|--":
            leaf = words[1]
        elif words == ["/32", "host", "LOCAL"] and leaf:
            found.add(ipaddress.IPv4Address(leaf).packed)
    return found


def parse_if_inet6(text: str) -> set[bytes]:
    """Find the IPv6 addresses of all interfaces."""
    return {bytes.fromhex(line.split()[0]) for line in text.splitlines() if line.strip()}


def read_own_addresses() -> set[bytes]:
    """Read which addresses are this host's, as its network namespace has them now."""
    return _read(FIB_TRIE, parse_fib_trie) | _read(IF_INET6, parse_if_inet6)


def _read(path: str, parse: Callable[[str], set[bytes]]) -> set[bytes]:
    try:
        with open(path, encoding="ascii") as file:
            return parse(file.read())
    except (OSError, ValueError):  # A kernel without IPv6, a /proc that does not show it.
        return set()
