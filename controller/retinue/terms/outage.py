"""One outage of ours: what a trainer masks, because what was scored meanwhile may be our fault. Pure.

`outages.jsonl` of an attempt has one line when an outage begins and one when it is over. The line
with a `to_utc` closes the one with the same service, node, replica, cause and `from_utc`.
"""

import math
from collections.abc import Iterable

from retinue.terms.record import DecodeError, Record, from_json

REPLICA_DOWN = "replica_down"


class Outage(Record, frozen=True, omit_defaults=False):
    """One line of `outages.jsonl`, and one entry of `GET /v1/outages`."""

    service: str
    node: str
    from_utc: float
    """Seconds since 1970."""
    to_utc: float | None
    """None: it lasts."""
    cause: str
    """`replica_down`, said by the controller of any service; by a service of itself: `node_pressure` |
    `warm_parent_down` | `host_down` | what its page names."""
    detail: str = ""
    """In words."""
    replica: str = ""
    """`checks/0`; empty outside a run."""

    def touches(self, from_utc: float, to_utc: float | None = None) -> bool:
        """Tell whether it lasted at some moment between the two; None: from then on."""
        begins_in_time = to_utc is None or self.from_utc <= to_utc
        return begins_in_time and (self.to_utc is None or self.to_utc >= from_utc)


def parse_since(text: str) -> float:
    """Read the `since` of a query, seconds since 1970; empty: from the beginning.

    Errors: ValueError in words.
    """
    try:
        since_utc = float(text or 0)
    except ValueError:
        since_utc = math.nan
    if not math.isfinite(since_utc):
        raise ValueError(f"cannot use since={text[:40]!r}: it is in seconds since 1970")
    return since_utc


def merge_outages(lines: Iterable[bytes]) -> list[Outage]:
    """Read the lines of a ledger as outages.

    Shape:  in the order in which they began; a line that cannot be read (it was torn) counts as not there.
    """
    found: dict[tuple[str, str, str, str, float], Outage] = {}
    for line in lines:
        try:
            outage = from_json(line, Outage)
        except DecodeError:
            continue
        key = (outage.service, outage.node, outage.replica, outage.cause, outage.from_utc)
        known = found.get(key)
        if known is None or known.to_utc is None:
            found[key] = outage
    return sorted(found.values(), key=lambda outage: outage.from_utc)
