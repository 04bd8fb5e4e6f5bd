"""One request from a client to a backend and back.

Holds while nothing is usable, sends again while nothing reached the client and
nothing is lost by it, streams both ways, and never ends a broken answer cleanly.
"""

import asyncio
import socket
import struct

import aiohttp
from aiohttp import web

from retinue.gateway.bodies import RequestBody
from retinue.gateway.choosing import Chooser
from retinue.gateway.direct import Direct, Upstream
from retinue.gateway.exchange import Counts, Exchange, Outgoing
from retinue.gateway.far import Far
from retinue.gateway.faults import UNSEEN, Blame, Fault, translate_error, translate_way_error
from retinue.gateway.hold import ReplayBudget, WaitingRoom
from retinue.gateway.notes import log
from retinue.gateway.placing import Placing
from retinue.gateway.routes import RouteTable, Slot
from retinue.gateway.sandboxes import refuse_fault
from retinue.gateway.upstream import build_authority
from retinue.gateway.wire import Headers, Refusal, build_request_headers, build_response_headers

SENDS_MAX = 5
"""A request that broke this many backends is not given another: it may be what breaks them."""
SENDS_OF_LATE = 3
"""What a backend that was silent too long counts for: one more may be tried, not four."""

_NO_LINGER = struct.pack("ii", 1, 0)


class Proxy:
    """Everything that requests share."""

    def __init__(
        self,
        table: RouteTable,
        room: WaitingRoom,
        budget: ReplayBudget,
        direct: Direct,
        far: Far | None = None,
    ) -> None:
        """`far`: the way to replicas of other nodes; None where there is one node, and all are asked directly."""
        self.table = table
        self.room = room
        self.budget = budget
        self.counts = Counts()
        self._direct = direct
        self._far = far
        self._loop = asyncio.get_running_loop()
        self.chooser = Chooser(table, room, Placing(table, direct.session, far), self.counts)

    async def forward(
        self, request: web.BaseRequest, headers: Headers, service: str, target: str
    ) -> web.StreamResponse:
        """Answer one request from a backend of the service.

        Errors: Refusal when there is none in time, the backend broke and sending again is not allowed,
                or the request cannot be passed on.
        """
        self.chooser.check_known(service)
        body = RequestBody(request, self.budget, service, self.table.find_rules(service).memory_bytes)
        wants_retry = request.headers.get("X-Retinue-Retry", "").lower() != "never"
        exchange = Exchange(request, headers, service, target, body, wants_retry, self._loop.time())
        try:
            await body.load()
            while True:
                slot = await self.chooser.find_slot(exchange)
                answer = await self._try_slot(exchange, slot)
                if answer is not None:
                    return answer
        finally:
            body.close()

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

    async def _send(self, exchange: Exchange, slot: Slot) -> Upstream:
        headers = build_request_headers(exchange.headers, exchange.service)
        body, rules = exchange.body, self.table.find_rules(exchange.service)
        if body.is_streamed and body.length is not None:
            headers.append(("Content-Length", str(body.length)))
        outgoing = Outgoing(exchange.request.method, exchange.target, headers, body)
        is_far = self._far is not None and slot.backend.node != self.table.node
        try:
            if self._far is not None and is_far:
                return await self._far.send(slot.backend, outgoing, rules.read_timeout_s)
            return await self._direct.send(slot.backend, outgoing, rules)
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
        if fault.blame in (Blame.BROKEN, Blame.LATE):
            exchange.sends += SENDS_OF_LATE if fault.blame is Blame.LATE else 1
            # Time at a backend is not time held.
            exchange.waiting_since_s = self._loop.time()
        is_again = exchange.wants_retry and exchange.body.can_send and exchange.sends < SENDS_MAX
        if fault.blame is Blame.GARBLED or not is_again:
            raise self._lose(service, message)
        self.counts.retried += 1

    async def _relay(self, exchange: Exchange, slot: Slot, upstream: Upstream) -> web.StreamResponse:
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

    def _lose(self, service: str, message: str) -> Refusal:
        log.warning("%s", message)
        return Refusal.bad_gateway(service, message, self.table.find_rules(service).unavailable_status)
