"""What a service may reach, and what it was refused: values that cross from plan to node and back."""

from retinue.terms.record import Record


class EgressRule(Record, frozen=True):
    """What one guarded incarnation may reach beside loopback and the allocation's own nodes."""

    udp: str = "none"
    """`none`: no UDP socket. `loopback`: bound to the loopback device. `full`: every address is looked at."""
    allow: tuple[str, ...] = ()
    """`CIDR`, `CIDR:PORT`, `[CIDR6]:PORT` or `HOST:PORT`; names become addresses before a supervisor sees them."""


class Denied(Record, frozen=True):
    """One destination that one replica was refused, and how often so far."""

    replica: str
    what: str
    """`tcp`, `udp`, `udp-socket`, ...: `egress.ledger` names them."""
    address: str
    """Literal; empty when the kind of socket was refused, or the address could not be read."""
    port: int
    count: int
    """So far, since its keeper started."""
    first_utc: float
    last_utc: float
    pid: int = 0
    """Of the first one that tried, in the node's namespace."""
    program: str = ""
    """Its name as the kernel shows it, at most 15 characters; the program chooses it."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes two of them the same line."""
        return self.replica, self.what, self.address, self.port

    @property
    def destination(self) -> str:
        """For people: `10.1.2.3:443`, `[2001:db8::1]:443`, or what kind of socket it was."""
        if not self.address:
            return self.what
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"
