"""One request from a client to a backend and back.

Holds while nothing is usable, sends again while nothing reached the client and
nothing is lost by it, streams both ways, and never ends a broken answer cleanly.
"""

import asyncio
import socket
import struct
import time

import aiohttp
from aiohttp import web

from retinue.gateway.bodies import RequestBody, check_connected
from retinue.gateway.exchange import Counts, Exchange
from retinue.gateway.far import Far, Outgoing
from retinue.gateway.faults import UNSEEN, Blame, Fault, translate_error, translate_way_error
from retinue.gateway.hold import ReplayBudget, WaitingRoom
from retinue.gateway.notes import log
from retinue.gateway.placing import Placing
from retinue.gateway.routes import RouteTable, Slot
from retinue.gateway.sandboxes import find_host, find_sandbox, is_create, refuse_fault
from retinue.gateway.upstream import build_authority, build_url
from retinue.gateway.wire import Headers, Refusal, build_request_headers, build_response_headers

FIRST_MEMBERSHIP_S = 60.0
"""How long a request waits for the first membership after this process started."""
SENDS_MAX = 5
"""A request that broke this many backends is not given another: it may be what breaks them."""

LOOK_PERIOD_S = 1.0
"""How often a held request whose body waits in the socket is checked for a client that went away."""

_NO_LINGER = struct.pack("ii", 1, 0)


class Proxy:
    """Everything that requests share."""

    def __init__(
        self,
        table: RouteTable,
        room: WaitingRoom,
        budget: ReplayBudget,
        session: aiohttp.ClientSession,
        far: Far | None = None,
    ) -> None:
        """`far`: the way to replicas of other nodes; None where there is one node, and all are asked directly."""
        self.table = table
        self.room = room
        self.budget = budget
        self.counts = Counts()
        self._session = session
        self._far = far
        self._loop = asyncio.get_running_loop()
        self._placing = Placing(table, session, far)

    async def forward(
        self, request: web.BaseRequest, headers: Headers, service: str, target: str
    ) -> web.StreamResponse:
        """Answer one request from a backend of the service.

        Errors: Refusal when there is none in time, the backend broke and sending again is not allowed,
                or the request cannot be passed on.
        """
        self._check_known(service)
        body = RequestBody(request, self.budget)
        wants_retry = request.headers.get("X-Retinue-Retry", "").lower() != "never"
        exchange = Exchange(request, headers, service, target, body, wants_retry, self._loop.time())
        try:
            await body.load()
            while True:
                slot = await self._find_slot(exchange)
                answer = await self._try_slot(exchange, slot)
                if answer is not None:
                    return answer
        finally:
            body.close()

    async def _find_slot(self, exchange: Exchange) -> Slot:
        while True:
            slot = await self._choose(exchange)
            if slot is not None:
                return slot
            await self._hold(exchange)

    async def _choose(self, exchange: Exchange) -> Slot | None:
        """Choose where a request goes; None: nowhere yet.

        Errors: Refusal when it is about a sandbox, and that is no more.
        """
        can_replay = exchange.wants_retry and not exchange.body.is_streamed
        service = self.table.services.get(exchange.service)
        if service is not None and service.route.is_sandbox:
            exchange.sandbox = find_sandbox(exchange.target, exchange.request.headers)
            if exchange.sandbox:
                return find_host(service, exchange.sandbox)
            if is_create(exchange.request.method, exchange.target):
                usable = self.table.list_usable(exchange.service, self._loop.time(), exchange.tried, can_replay)
                return await self._placing.choose(usable, exchange.body.kept)
        return self.table.choose(exchange.service, self._loop.time(), exchange.tried, can_replay)

    async def _hold(self, exchange: Exchange) -> None:
        """Wait until something changed for the service.

        Errors: Refusal at once when the room or the byte budget is full, or the hold is over.
        """
        service = exchange.service
        self._check_known(service)
        known = self.table.services.get(service)
        hold_s = known.route.hold_s if known else FIRST_MEMBERSHIP_S
        now_s = self._loop.time()
        left_s = exchange.waiting_since_s + hold_s - now_s
        if left_s <= 0:
            raise self._refuse(exchange, f"cannot call {service!r}: no replica is ready, held {hold_s:g} s")
        if self.room.is_full:
            raise self._refuse(exchange, f"cannot hold a request for {service!r}: {self.room.count} are held already")
        if exchange.body.is_over_budget:
            raise self._refuse(exchange, f"cannot hold a request for {service!r}: too many bytes are held already")
        trial_s = self.table.next_trial_s(service)
        # A trial that is due but not free is under way; its end wakes the room.
        wait_s = min(left_s, trial_s - now_s) if trial_s is not None and trial_s > now_s else left_s
        if exchange.body.is_streamed:
            # Its unread body has paused reading, so the loop does not see the client go.
            wait_s = min(wait_s, LOOK_PERIOD_S)
            check_connected(exchange.request)
        self.counts.held += not exchange.was_held
        exchange.was_held = True
        await self.room.wait(service, wait_s)

    async def _try_slot(self, exchange: Exchange, slot: Slot) -> web.StreamResponse | None:
        """Send the request to one backend and pass its answer on; None when it is to be sent again."""
        with self.table.count(slot):
            try:
                return await self.ask(exchange, slot)
            except Fault as fault:
                self._judge(exchange, slot, fault)
                return None

    async def ask(self, exchange: Exchange, slot: Slot) -> web.StreamResponse:
        """Send the request to this backend, once, and pass its answer on.

        Errors: Fault when it failed before a byte of an answer was passed on.
        """
        upstream = await self._send(exchange, slot)
        try:
            self.table.answered(slot)
            return await self._relay(exchange, slot, upstream)
        finally:
            upstream.close()

    async def _send(self, exchange: Exchange, slot: Slot) -> aiohttp.ClientResponse:
        headers = build_request_headers(exchange.headers, exchange.service)
        headers.append(("Host", build_authority(slot.backend)))
        body, method = exchange.body, exchange.request.method
        if body.is_streamed and body.length is not None:
            headers.append(("Content-Length", str(body.length)))
        is_far = self._far is not None and slot.backend.node != self.table.node
        try:
            if self._far is not None and is_far:
                return await self._far.send(slot.backend, Outgoing(method, exchange.target, headers, body))
            return await self._session.request(
                method,
                build_url(slot.backend, exchange.target),
                headers=headers,
                data=body.payload(),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if body.is_broken:
                raise Fault(Blame.CALLER, "the request's body broke off") from None
            raise (translate_way_error(error) if is_far else translate_error(error)) from None

    def _judge(self, exchange: Exchange, slot: Slot, fault: Fault) -> None:
        """Count a fault where it belongs; return when the request may be sent again.

        Errors: Refusal when it may not.
        """
        service, replica = exchange.service, slot.backend.replica
        if fault.blame is Blame.CALLER:
            raise Refusal.bad_request(f"cannot pass the request on: {fault}", service)
        message = f"cannot get an answer of {replica}: {fault}"
        if fault.blame is Blame.OURS:
            raise self._lose(service, f"{message} (on the gateway's side)")
        self.count_failure(slot, fault)
        if exchange.sandbox:
            raise refuse_fault(service, exchange.sandbox, slot, fault)
        exchange.tried.add(slot)
        if fault.blame is Blame.BROKEN:
            exchange.sends += 1
            # Time at a backend is not time held.
            exchange.waiting_since_s = self._loop.time()
        is_again = exchange.wants_retry and exchange.body.can_send and exchange.sends < SENDS_MAX
        if fault.blame is Blame.GARBLED or not is_again:
            raise self._lose(service, message)
        self.counts.retried += 1

    async def _relay(self, exchange: Exchange, slot: Slot, upstream: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass an answer on as it arrives; from its first byte on there is no other."""
        request, content = exchange.request, upstream.content
        authority = build_authority(slot.backend)
        if content.exception() is not None:
            raise Fault(Blame.BROKEN, "broke off before a byte was passed on")
        try:
            headers = build_response_headers(upstream.headers.items(), exchange.service, authority)
        except ValueError as error:
            raise Fault(Blame.GARBLED, str(error)) from None
        if content.is_eof():
            # It is here whole: one write instead of three.
            slot.completed()
            whole = content.read_nowait()
            return web.Response(status=upstream.status, reason=upstream.reason, headers=headers, body=whole)
        answer = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        await answer.prepare(request)
        while True:
            try:
                part = await content.readany()
            except (aiohttp.ClientError, OSError) as error:
                self._cut_off(exchange, slot, error)
                return answer
            if not part:
                break
            await answer.write(part)
        slot.completed()
        await answer.write_eof()
        return answer

    def _cut_off(self, exchange: Exchange, slot: Slot, error: Exception) -> None:
        """End the client's connection so that no client can take the part for the whole."""
        self.counts.failed += 1
        if not exchange.body.is_broken:
            self.count_failure(slot, Fault(Blame.BROKEN, str(translate_error(error))))
        log.warning("cut off an answer of %s: it broke off midway", slot.backend.replica)
        transport = exchange.request.transport
        if transport is None:
            return
        # A reset: an answer that ends with its connection (HTTP/1.0) would look complete after a FIN.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()

    def count_failure(self, slot: Slot, fault: Fault) -> None:
        """Count a fault of the backend against it."""
        if slot.failed(self._loop.time(), str(fault), fault.blame in UNSEEN):
            backend = slot.backend
            log.warning("left out %s#%d: %s", backend.replica, backend.incarnation, fault)

    def _check_known(self, service: str) -> None:
        if self.table.epoch is None or service in self.table.services:
            return
        nearest = self.table.nearest(service)
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        raise Refusal(404, "retinue_unknown_service", f"cannot find a service {service[:100]!r}{hint}", service[:100])

    def _refuse(self, exchange: Exchange, message: str) -> Refusal:
        service = exchange.service
        known = self.table.services.get(service)
        if known is None:
            return Refusal.unavailable(service, f"{message}; no membership has arrived", None)
        causes = [known.route.cause, *(f"{s.backend.replica}: {s.cause}" for s in known.slots if s.cause)]
        why = "; ".join(cause for cause in causes if cause)
        # Who was left out by this gateway is not the controller's knowledge yet: since the request found it so.
        since_utc = known.route.unready_since_utc or time.time() - (self._loop.time() - exchange.waiting_since_s)
        return Refusal.unavailable(service, f"{message}; {why}" if why else message, since_utc)

    def _lose(self, service: str, message: str) -> Refusal:
        log.warning("%s", message)
        return Refusal.bad_gateway(service, message)
