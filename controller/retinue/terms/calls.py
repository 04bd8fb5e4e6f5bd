"""How a service may be called through the gateways: bounds, patience, and what is said when it cannot be called."""

from retinue.terms.record import Record

SESSION_HEADER = "X-Retinue-Session"


class CallRules(Record, frozen=True):
    """The `gateway` settings of one service, as plan, membership and gateways know them."""

    concurrency: int = 0
    """Requests at one replica at once, from all nodes together; 0: no bound."""
    queue: int = 1000
    """Requests of the service that wait in one gateway at once."""
    memory_bytes: int = 64 * 1024 * 1024
    """Request bodies of the service that one gateway keeps at once."""
    affinity: str = SESSION_HEADER
    """Header by whose value a replica is chosen; empty: none."""
    connect_timeout_s: float = 2.0
    read_timeout_s: float | None = None
    """Silence of a replica that ends a request; None: it may think for an hour."""
    unavailable_status: int = 409
    """Status of the typed errors that are our fault."""
