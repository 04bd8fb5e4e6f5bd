"""What a run says of its services: `endpoints.json`, read by programs.

The same file as the one that `journal/` writes; a test compares the two. Reads,
never writes.
"""

from pathlib import Path

from retinue.errors import TransientError
from retinue.terms.outage import Outage, merge_outages
from retinue.terms.record import DecodeError, Record, from_json


class Endpoint(Record, frozen=True):
    """One service."""

    kind: str
    """judge, retrieval, user-simulator, checks, sandbox or command."""
    url: str | None
    """Valid for the whole run, without a trailing slash; None for a TCP service."""
    ready: int
    """Replicas that take requests now."""
    wanted: int
    addresses: tuple[str, ...] = ()
    """`host:port` of each ready replica, without a promise that they stay."""


class Endpoints(Record, frozen=True):
    """The whole file."""

    services: dict[str, Endpoint]
    run_id: str = ""
    epoch: int = 0
    """Grows with every change."""


def read_endpoints(path: str) -> Endpoints:
    """Read the file as it is now.

    Errors: TransientError when it is not there or not readable.
    """
    try:
        return from_json(Path(path).read_bytes(), Endpoints)
    except (OSError, DecodeError) as error:
        raise TransientError(f"cannot read endpoints {path!r}: {error}") from None


def read_outages(path: Path) -> list[Outage]:
    """Read the run's ledger; without a file there was no outage.

    Errors: TransientError when it cannot be read.
    """
    try:
        return merge_outages(path.read_bytes().splitlines())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TransientError(f"cannot read outages {str(path)!r}: {error}") from None


def find_unready(found: Endpoints, names: tuple[str, ...]) -> list[str]:
    """Name what has no ready replica, `judge 0/2`; a name that is not there is unready too."""
    unready = []
    for name in names or tuple(found.services):
        endpoint = found.services.get(name)
        if endpoint is None:
            unready.append(f"{name} (no such service)")
        elif endpoint.ready < 1:
            unready.append(f"{name} {endpoint.ready}/{endpoint.wanted}")
    return unready
