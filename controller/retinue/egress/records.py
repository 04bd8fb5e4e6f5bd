"""What a keeper and its egress supervisor say to each other: one record per packet."""

from retinue.terms.egress import Denied, EgressRule
from retinue.terms.record import Record


class Packet(Record, frozen=True, tag_field="g"):
    """One packet."""


class Watch(Packet, frozen=True, tag=True):
    """Answer the calls of this tree; its listener comes beside the packet."""

    key: int
    """Never used twice by one keeper, never 0."""
    replica: str
    rule: EgressRule


class Tell(Packet, frozen=True, tag=True):
    """Addresses of the allocation's nodes."""

    addresses: tuple[str, ...]


class Ready(Packet, frozen=True, tag=True):
    """All that was watched by the supervisor before this one has been said."""


ToSupervisor = Watch | Tell | Ready


class Alive(Packet, frozen=True, tag=True):
    """The supervisor's beat."""


class Seen(Packet, frozen=True, tag=True):
    """What was denied since the last of these; counts are what came on top."""

    lines: tuple[Denied, ...]


FromSupervisor = Alive | Seen
