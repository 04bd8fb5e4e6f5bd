"""The addresses by which other nodes may reach this host, most likely first. Standard library only.

Nobody can tell from inside which of a host's networks the other nodes are on:
all are offered, the caller of `connect` tries them, and what works is kept.
"""

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from retinue.errors import TransientError
from retinue.node.threads import Threads

_SIOCGIFADDR = 0x8915
"""ioctl_netdevice(7): the IPv4 address of an interface."""
_INET6 = Path("/proc/net/if_inet6")


def list_addresses(hostname: str | None = None) -> tuple[str, ...]:
    """List this host's own addresses that are not loopback or link-local.

    Shape:  the addresses of the host's name first: that is where people and Slurm look for it. A name that stands for
            loopback, or for another host, adds nothing.
    """
    own = dict.fromkeys(filter(_is_usable, (*_read_ipv4(), *_read_ipv6())))
    named = [address for address in _resolve(hostname or socket.gethostname()) if address in own]
    return tuple(dict.fromkeys([*named, *own]))


async def read_addresses(threads: Threads, node_count: int) -> tuple[str, ...]:
    """List the addresses by which other nodes may reach this one; a name service that hangs costs the name's only."""
    if node_count <= 1:
        return ()
    try:
        return await threads.run(list_addresses)
    except TransientError:
        return list_addresses("127.0.0.1")


def find_own_address(controllers: tuple[tuple[str, int], ...]) -> str:
    """Find the address by which this node reaches its controller; no packet is sent.

    Only literal addresses are asked: a name service may hang.
    """
    for host, port in controllers:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                socket.inet_pton(family, host)
                probe.connect((host, port))
                return str(probe.getsockname()[0])
            except OSError:
                continue
    return "127.0.0.1"


def _resolve(name: str) -> Iterable[str]:
    try:
        return [str(place[4][0]) for place in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def _read_ipv4() -> Iterable[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _number, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # It has no IPv4 address.
            yield socket.inet_ntoa(answer[20:24])


def _read_ipv6() -> Iterable[str]:
    try:
        lines = _INET6.read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        yield str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0])))


def _is_usable(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return not (address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast)
