"""`egress.jsonl`: one line for a destination that a service was denied; the last one of a destination is its total."""

from retinue.terms.record import Record


class EgressLine(Record, frozen=True):
    """One line."""

    t: float
    """Epoch seconds, when it was written."""
    node: str
    replica: str
    what: str
    """`tcp`, `udp`, `udp-connect` (nothing was sent), `udp-socket`, `other-socket`, `unreadable`, `more`."""
    address: str
    """Empty when the kind of socket was denied, or the address could not be read."""
    port: int
    count: int
    """So far."""
    first_utc: float
    last_utc: float
    pid: int
    """The thread that tried first, in its node's namespace."""
    program: str
    """What that program called itself."""


class EgressStatus(Record, frozen=True):
    """The guard in status and verdict."""

    denied: int = 0
    """Calls."""
    destinations: int = 0
    top: tuple[str, ...] = ()
    """Where most of it went: `judge/0 to 203.0.113.7:443 (12)`."""
    services: dict[str, str] = {}
    """Service -> `on`, `off` (by the manifest), `exempt` (no network at all)."""
    off: dict[str, str] = {}
    """Nodes where nothing can be guarded, and why."""


def render_egress(egress: EgressStatus) -> str:
    """Say it in one line; empty when there is no service that it could be about."""
    off = [name for name, guard in egress.services.items() if guard == "off"]
    guarded = "on" in egress.services.values()
    words = []
    if guarded:
        calls = f"{egress.denied} call{'' if egress.denied == 1 else 's'} denied"
        more = f" and {egress.destinations - len(egress.top)} more" if egress.destinations > len(egress.top) else ""
        words.append(f"{calls}: {', '.join(egress.top)}{more}" if egress.top else calls)
    if off:
        words.append(f"off for {', '.join(off)}")
    words += [f"NOT GUARDED on {node}: {reason}" for node, reason in egress.off.items()]
    return "; ".join(words)
