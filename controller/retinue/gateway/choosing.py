"""Where one request goes, and how it waits while that is nowhere.

Who waits is served in order of arrival; a request that finds others waiting for a free place waits behind them.
"""

import asyncio
import time

from retinue.gateway.bodies import check_connected
from retinue.gateway.exchange import Counts, Exchange
from retinue.gateway.hold import WaitingRoom
from retinue.gateway.placing import Placing, compute_rank
from retinue.gateway.routes import RouteTable, Service, Slot
from retinue.gateway.sandboxes import find_host, find_sandbox, is_create
from retinue.gateway.wire import Refusal

FIRST_MEMBERSHIP_S = 60.0
"""How long a request waits for the first membership after this process started."""
LOOK_PERIOD_S = 1.0
"""How often a held request whose body waits in the socket is checked for a client that went away."""


class Chooser:
    """Finds backends for requests."""

    def __init__(self, table: RouteTable, room: WaitingRoom, placing: Placing, counts: Counts) -> None:
        self._table = table
        self._room = room
        self._placing = placing
        self._counts = counts
        self._loop = asyncio.get_running_loop()

    async def find_slot(self, exchange: Exchange) -> Slot:
        """Find a backend that takes the request, and wait for one.

        Errors: Refusal when there is none in time, too many wait already, or it is about a sandbox that is no more.
        """
        if self._is_crowded(exchange):
            await self._hold(exchange)
        while True:
            slot = await self._choose(exchange)
            if slot is not None:
                return slot
            await self._hold(exchange)

    def check_known(self, service: str) -> None:
        """Refuse what no membership lists.

        Errors: Refusal 404 names the nearest service.
        """
        if self._table.epoch is None or service in self._table.services:
            return
        nearest = self._table.nearest(service)
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        raise Refusal(404, "retinue_unknown_service", f"cannot find a service {service[:100]!r}{hint}", service[:100])

    async def wait_free(self, slot: Slot) -> None:
        """Wait until a backend of the own node has room for one more request of another node's gateway.

        Errors: Refusal when too many wait here already, or it waited as long as the service lets requests wait.
        """
        # By the replica's name: a free place at another one is of no use here.
        name, service = slot.backend.replica, self._table.services.get(slot.service)
        until_s = self._loop.time() + (service.route.hold_s if service is not None else FIRST_MEMBERSHIP_S)
        is_first = True
        while slot.is_full or (is_first and slot.limit and self._room.has_waiting(name)):
            left_s = until_s - self._loop.time()
            if left_s <= 0 or self._room.is_full_for(name, self._table.find_rules(slot.service).queue):
                raise Refusal.unavailable(slot.service, f"cannot hold a request for {name}: it is busy", None)
            await self._room.wait(name, left_s, is_first=not is_first)
            is_first = False

    def _is_crowded(self, exchange: Exchange) -> bool:
        """Tell whether others wait for a free place already: overtaking them would let the queue stand still."""
        service = self._table.services.get(exchange.service)
        has_bound = service is not None and service.route.rules.concurrency > 0 and not service.route.is_sandbox
        return has_bound and not exchange.was_held and self._room.has_waiting(exchange.service)

    async def _choose(self, exchange: Exchange) -> Slot | None:
        """Choose where a request goes; None: nowhere yet.

        Errors: Refusal when it is about a sandbox, and that is no more.
        """
        can_replay = exchange.wants_retry and not exchange.body.is_streamed
        table, now_s = self._table, self._loop.time()
        service = table.services.get(exchange.service)
        if service is None:
            return None
        if service.route.is_sandbox:
            exchange.sandbox = find_sandbox(exchange.target, exchange.request.headers)
            if exchange.sandbox:
                return find_host(service, exchange.sandbox)
            if is_create(exchange.request.method, exchange.target):
                usable = table.list_usable(exchange.service, now_s, exchange.tried, can_replay)
                return await self._placing.choose(usable, exchange.body.kept)
        session = exchange.request.headers.get(service.route.rules.affinity, "") if service.route.rules.affinity else ""
        if session:
            usable = table.list_usable(exchange.service, now_s, exchange.tried, can_replay)
            return table.take(choose_for_session(session, usable)) if usable else None
        return table.choose(exchange.service, now_s, exchange.tried, can_replay)

    async def _hold(self, exchange: Exchange) -> None:
        """Wait until something changed for the service.

        Errors: Refusal at once when the room or the byte budget is full, or the hold is over.
        """
        service = exchange.service
        self.check_known(service)
        known = self._table.services.get(service)
        hold_s = known.route.hold_s if known else FIRST_MEMBERSHIP_S
        now_s = self._loop.time()
        left_s = exchange.waiting_since_s + hold_s - now_s
        if left_s <= 0:
            raise self._refuse(exchange, f"cannot call {service!r}: {_say_state(known)}, held {hold_s:g} s")
        if self._room.is_full_for(service, self._table.find_rules(service).queue):
            count = self._room.count_waiting(service)
            raise self._refuse(exchange, f"cannot hold a request for {service!r}: {count} are held already")
        if exchange.body.is_over_budget:
            raise self._refuse(exchange, f"cannot hold a request for {service!r}: too many bytes are held already")
        trial_s = self._table.next_trial_s(service)
        # A trial that is due but not free is under way; its end wakes the room.
        wait_s = min(left_s, trial_s - now_s) if trial_s is not None and trial_s > now_s else left_s
        if exchange.body.is_streamed:
            # Its unread body has paused reading, so the loop does not see the client go.
            wait_s = min(wait_s, LOOK_PERIOD_S)
            check_connected(exchange.request)
        self._counts.held += not exchange.was_held
        is_again, exchange.was_held = exchange.was_held, True
        await self._room.wait(service, wait_s, is_first=is_again)

    def _refuse(self, exchange: Exchange, message: str) -> Refusal:
        service = exchange.service
        known = self._table.services.get(service)
        if known is None:
            return Refusal.unavailable(service, f"{message}; no membership has arrived", None)
        causes = [known.route.cause, *(f"{s.backend.replica}: {s.cause}" for s in known.slots if s.cause)]
        why = "; ".join(cause for cause in causes if cause)
        # Who was left out by this gateway is not the controller's knowledge yet: since the request found it so.
        since_utc = known.route.unready_since_utc or time.time() - (self._loop.time() - exchange.waiting_since_s)
        status = known.route.rules.unavailable_status
        return Refusal.unavailable(service, f"{message}; {why}" if why else message, since_utc, status)


def choose_for_session(session: str, usable: list[Slot]) -> Slot:
    """Choose the backend of a session: the same one as long as it is usable, whichever gateway is asked."""
    return max(usable, key=lambda slot: compute_rank(session, slot.backend.replica))


def _say_state(known: Service | None) -> str:
    is_busy = known is not None and any(slot.is_trusted and slot.is_full for slot in known.slots)
    return "every replica is busy" if is_busy else "no replica is ready"
