"""What services were denied, as the whole run sees it, and whom they may reach: every node's addresses.

Counts come from the keepers and are totals, so hearing one twice, or from an agent that was started
again, changes nothing. A line is written when a destination is new and whenever its count has doubled.
"""

from collections import Counter
from typing import TYPE_CHECKING

from retinue.channel.messages import EgressDenied, Hello, ReachAddresses
from retinue.journal.egress import EgressLine, EgressStatus
from retinue.plan.records import Plan
from retinue.supervise.state import RunPhase
from retinue.terms.egress import Denied

if TYPE_CHECKING:
    from retinue.supervise.run import Run

TOP = 5
"""Destinations that status and verdict name."""
OFF, EXEMPT, ON = "off", "exempt", "on"


class EgressWatch:
    """The half of a run that is about what its services reach."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._lines: dict[tuple[str, tuple[str, str, str, int]], Denied] = {}
        """By node and destination."""
        self._written: dict[tuple[str, tuple[str, str, str, int]], int] = {}
        """The count that was last written down."""
        self._addresses: dict[str, None] = {}

    # --- whom they may reach --------------------------------------------------------------------

    def take_join(self, node: str, hello: Hello) -> None:
        """Learn a node's addresses, and tell it all that are known; services start when all nodes are there."""
        run = self.run
        fresh = [address for address in hello.addresses if address not in self._addresses]
        self._addresses.update(dict.fromkeys(fresh))
        if hello.guard_off and has_guarded(run.plan):
            run.edges.journal.note(node, "EgressGuardOff", f"services of this node are not guarded: {hello.guard_off}")
        if run.state.phase is RunPhase.JOINING:
            return
        self._tell([node], tuple(self._addresses))
        others = [view.name for view in run.nodes.joined() if view.name != node]
        self._tell(others if fresh else [], tuple(fresh))

    def tell_all(self) -> None:
        """Tell every node of all others: the first service is about to start."""
        self._tell([view.name for view in self.run.nodes.joined()], tuple(self._addresses))

    def _tell(self, nodes: list[str], addresses: tuple[str, ...]) -> None:
        for node in nodes if addresses else ():
            self.run.edges.agents.send(node, ReachAddresses(addresses))

    # --- what they were denied ------------------------------------------------------------------

    def take(self, node: str, message: EgressDenied) -> None:
        """Take totals of one node."""
        for line in message.lines:
            key = (node, line.key)
            self._lines[key] = line
            before = self._written.get(key)
            if before is None:
                reason = f"{line.what} to {line.destination}" if line.address else line.destination
                self.run.edges.journal.note(line.replica, "EgressDenied", f"{reason}, by {line.program or 'a program'}")
            if before is None or line.count >= 2 * before:
                self._write(node, line)

    def write_totals(self) -> None:
        """Write down every count that was not, at the end of the run."""
        for (node, key), line in self._lines.items():
            if line.count != self._written[node, key]:
                self._write(node, line)

    def _write(self, node: str, line: Denied) -> None:
        self._written[node, line.key] = line.count
        self.run.edges.journal.deny(
            EgressLine(
                t=self.run.edges.clock.now_utc(),
                node=node,
                replica=line.replica,
                what=line.what,
                address=line.address,
                port=line.port,
                count=line.count,
                first_utc=line.first_utc,
                last_utc=line.last_utc,
                pid=line.pid,
                program=line.program,
            )
        )

    def build_status(self) -> EgressStatus:
        """Say how much was denied, and where most of it went."""
        counts: Counter[tuple[str, str]] = Counter()
        for line in self._lines.values():
            counts[line.replica, line.destination] += line.count
        # An address tells more than a UDP socket that some look-up of a name has tried.
        named = {(line.replica, line.destination) for line in self._lines.values() if line.address}
        ranked = sorted(counts.items(), key=lambda entry: (entry[0] in named, entry[1]), reverse=True)
        top = tuple(f"{replica} to {where} ({count})" for (replica, where), count in ranked[:TOP])
        views = self.run.nodes.views.values()
        off = {view.name: view.hello.guard_off for view in views if view.hello and view.hello.guard_off}
        return EgressStatus(
            denied=counts.total(),
            destinations=len(counts),
            top=top,
            services={service.name: service.guard for service in self.run.plan.services},
            off=off if has_guarded(self.run.plan) else {},
        )


def has_guarded(plan: Plan) -> bool:
    """Say whether any service is to be guarded."""
    return any(service.guard == ON for service in plan.services)
