"""Which destinations a service may reach: loopback, the allocation, its `allow` list. Pure.

Names are turned into addresses before a rule comes here; one that is still a name reaches nothing.
"""

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from retinue.egress.addresses import Place, is_loopback
from retinue.terms.egress import EgressRule

ANY_PORT = 0


class Net(NamedTuple):
    """One entry of `allow`, ready to be compared."""

    size: int
    """Bytes of an address: 4 or 16."""
    network: int
    mask: int
    port: int
    """ANY_PORT: all of them."""

    def has(self, place: Place) -> bool:
        if len(place.address) != self.size or self.port not in (ANY_PORT, place.port):
            return False
        return int.from_bytes(place.address, "big") & self.mask == self.network


class Reach:
    """The addresses of the allocation's nodes: only ever more of them."""

    def __init__(self) -> None:
        self._own: set[bytes] = set()
        self._told: set[bytes] = set()

    def tell(self, addresses: Iterable[str]) -> None:
        """Learn other nodes' addresses; a text that is no address is passed over."""
        for text in addresses:
            try:
                self._told.add(ipaddress.ip_address(text).packed)
            except ValueError:
                continue

    def take_own(self, addresses: set[bytes]) -> None:
        """Learn which addresses are this host's now."""
        self._own = addresses

    def has(self, address: bytes) -> bool:
        return is_loopback(address) or address in self._told or address in self._own


class Rules:
    """One incarnation's rules."""

    def __init__(self, rule: EgressRule, reach: Reach) -> None:
        self.udp = rule.udp
        self._reach = reach
        self._nets = tuple(net for text in rule.allow if (net := parse_net(text)) is not None)

    def admit(self, place: Place, is_datagram: bool) -> bool:
        """Say whether this destination may be reached.

        Shape: with `udp: loopback` a datagram may go to loopback only; the device it is bound to leads nowhere else.
        """
        if is_datagram and self.udp == "loopback":
            return is_loopback(place.address)
        return self._reach.has(place.address) or any(net.has(place) for net in self._nets)


def parse_net(text: str) -> Net | None:
    """Read `CIDR`, `CIDR:PORT` or `[CIDR6]:PORT`; None when it is a name, or nothing of these."""
    where, port = split_port(text)
    try:
        network = ipaddress.ip_network(where)
    except ValueError:
        return None
    return Net(network.max_prefixlen // 8, int(network.network_address), int(network.netmask), port)


def split_port(text: str) -> tuple[str, int]:
    """Split off a port; ANY_PORT when there is none. A bare IPv6 network has colons and no port."""
    where, colon, port = text.rpartition(":")
    if not colon or (":" in where and not where.startswith("[")) or not port.isdigit():
        return text, ANY_PORT
    return where.removeprefix("[").removesuffix("]"), int(port)
