"""When a replica that took requests is gone, and when it is back: the controller's part of the ledger. Pure."""

from retinue.supervise.seat import Seat
from retinue.terms.outage import REPLICA_DOWN, Outage
from retinue.terms.record import replace
from retinue.terms.replica import AnyEvent, Phase, StopAsked

RUN_ENDED = "the run ended meanwhile"


def find_outage(before: Phase, seat: Seat, event: AnyEvent, reason: str, now_utc: float) -> Outage | None:
    """Find what one step of a replica's life means for the ledger.

    Shape:  None: nothing; without `to_utc`: an outage begins; with it: the seat's own is over.
    """
    if seat.outage is not None:
        return replace(seat.outage, to_utc=now_utc) if seat.replica.phase is Phase.READY else None
    # What we stop for good is no outage, nor is one that ended as it should.
    is_lost = before is Phase.READY and seat.replica.phase not in (Phase.READY, Phase.STOPPED)
    if not is_lost or isinstance(event, StopAsked):
        return None
    return Outage(seat.place.service, seat.place.node, now_utc, None, REPLICA_DOWN, reason, seat.replica.id)


def keep_outage(seat: Seat, outage: Outage | None) -> Seat:
    """Keep in the seat what lasts, and drop what is over."""
    if outage is None:
        return seat
    return replace(seat, outage=outage if outage.to_utc is None else None)


def close_outage(outage: Outage, now_utc: float) -> Outage:
    """Close what still lasts when the run is over."""
    words = f"{outage.detail}; {RUN_ENDED}" if outage.detail else RUN_ENDED
    return replace(outage, to_utc=now_utc, detail=words)
