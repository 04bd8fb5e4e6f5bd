"""The agent's part in the egress guard: passes on what was denied, and whom the allocation is made of."""

from retinue.channel.messages import EgressDenied, ReachAddresses
from retinue.node.keeper_link import Keeper
from retinue.node.orders import DeniedSeen, TellAddresses
from retinue.node.outbox import Outbox
from retinue.terms.egress import Denied

LINES_MAX = 500
"""In one message."""


class GuardLink:
    """Between the keeper, which has the counts, and the controller, which may be away."""

    def __init__(self, keeper: Keeper, outbox: Outbox) -> None:
        self._keeper = keeper
        self._outbox = outbox
        self._lines: dict[tuple[str, str, str, int], Denied] = {}

    def take(self, packet: DeniedSeen) -> None:
        """Pass on what was denied; a controller that is away hears all of it when it is back."""
        self._lines.update({line.key: line for line in packet.lines})
        self._outbox.say_now(EgressDenied(packet.lines))

    def retell(self) -> None:
        """Say everything again to a controller that has just connected."""
        lines = tuple(self._lines.values())
        for at in range(0, len(lines), LINES_MAX):
            self._outbox.say_now(EgressDenied(lines[at : at + LINES_MAX]))

    def tell(self, message: ReachAddresses) -> None:
        """Tell the keeper of the allocation's addresses."""
        for at in range(0, len(message.addresses), LINES_MAX):
            self._keeper.send(TellAddresses(message.addresses[at : at + LINES_MAX]))
