"""Telling every gateway where the replicas are: at once, and never more often than it may cost.

The first change is told at once; what changes while that is under way or rests is
told together afterwards. A large run is told in slices, so that no decision waits
for a thousand gateways.
"""

from collections.abc import Sequence

from retinue.channel.messages import Membership
from retinue.plan.records import Plan
from retinue.supervise.edges import Edges
from retinue.supervise.fleet import Fleet
from retinue.supervise.happenings import RunTimer
from retinue.supervise.nodes import Nodes
from retinue.supervise.routes import RouteBook
from retinue.terms.record import replace

TIMER = "routes"
SLICE = 16
"""Gateways told between two other happenings."""
REST_PER_NODE_S = 0.0005
REST_PER_BACKEND_S = 0.000005
LONGEST_REST_S = 2.0
"""A round may take a sixth of the time: it costs about 80 us for each node that is looked at and 0.5 us for each
backend that is told. A change that few nodes need to know makes for a short rest."""


class Spread:
    """Who was told what, and who is next."""

    def __init__(self, plan: Plan, edges: Edges, fleet: Fleet, nodes: Nodes) -> None:
        self._plan, self._edges, self._fleet, self._nodes = plan, edges, fleet, nodes
        self.epoch = 0
        self._book: RouteBook | None = None
        self._book_s = 0.0
        self._told: dict[str, Membership] = {}
        """With epoch 0."""
        self._touched: set[str] = set()
        """Nodes of this round with a replica that was published or withdrawn: they are told even what looks the same,
        because their gateways may have dropped it by their agents' word."""
        self._left: list[str] = []
        """Nodes of this round that are still to be told."""
        self._told_count = 0
        """Backends told in this round."""
        self._is_waiting = False
        """The timer for the next slice or the end of the rest is set."""

    def greet(self, node: str) -> None:
        """Tell a node whose agent has just connected, whatever it was told before."""
        age_s = self._edges.clock.now_s() - self._book_s
        if self._book is None or age_s > REST_PER_NODE_S * len(self._nodes.views):
            self._open_book()
        self._tell([node], is_forced=True)

    def advance(self) -> None:
        """Begin a round when something changed and no round is under way."""
        if self._fleet.new_routes and not self._is_waiting:
            self._touched, self._fleet.new_routes = self._fleet.new_routes, set()
            self._open_book()
            joined = [view.name for view in self._nodes.joined()]
            self._left = sorted(joined, key=lambda name: name not in self._touched)
            self._told_count = 0
            self.take_timer()

    def take_timer(self) -> None:
        """Tell the next slice, then wait for the one after it, or rest."""
        self._is_waiting = bool(self._left)
        if not self._is_waiting:
            return
        slice_, self._left = self._left[:SLICE], self._left[SLICE:]
        self._tell(slice_)
        rest_s = REST_PER_NODE_S * len(self._nodes.views) + REST_PER_BACKEND_S * self._told_count
        wait_s = 0.0 if self._left else min(LONGEST_REST_S, rest_s)
        self._edges.timers.set(TIMER, self._edges.clock.now_s() + wait_s, RunTimer(TIMER))

    def _open_book(self) -> None:
        self._book = RouteBook(self._plan, self._fleet.seats, self._nodes, self._book)
        self._book_s = self._edges.clock.now_s()

    def _tell(self, names: Sequence[str], is_forced: bool = False) -> None:
        if self._book is None:
            return
        for name in names:
            told = self._book.build(name)
            if is_forced or name in self._touched or told != self._told.get(name):
                self._told[name] = told
                self._told_count += sum(len(route.backends) for route in told.routes)
                self.epoch += 1
                self._edges.agents.send(name, replace(told, epoch=self.epoch))
