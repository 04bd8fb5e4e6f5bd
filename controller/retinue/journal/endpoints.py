"""Where the services are, for programs: `endpoints.json`, replaced in one step, with an epoch."""

from retinue.terms.record import Record


class Endpoint(Record, frozen=True):
    """One service."""

    kind: str
    url: str | None
    """Stable for the whole run, no trailing slash; None for a TCP service."""
    ready: int
    wanted: int
    addresses: tuple[str, ...] = ()
    """`host:port` of each ready replica: the only way to a TCP service, and no stability is promised."""


class Endpoints(Record, frozen=True):
    """The whole file."""

    run_id: str
    epoch: int
    """Grows with every change."""
    services: dict[str, Endpoint]
