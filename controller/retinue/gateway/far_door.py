"""The door for other nodes' gateways: what they ask of a replica of this node, and nothing else.

Only a node of this run gets through the handshake. Forwards to the one replica and incarnation that is named,
if it is this node's, and never to another node: a request that came from far does not go far again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from retinue.channel.admission import Admission
from retinue.channel.context import limit_tls_buffers
from retinue.gateway.bodies import RequestBody
from retinue.gateway.control import HAS_CONTROLLER, HAS_NONE, WHETHER_CONTROLLER
from retinue.gateway.exchange import Exchange
from retinue.gateway.far import HANDSHAKE_S, PING, Hop
from retinue.gateway.faults import Blame, Fault, build_fault
from retinue.gateway.front import SERVER_WORDS
from retinue.gateway.proxy import Proxy
from retinue.gateway.pulse import Pulse
from retinue.gateway.routes import Slot
from retinue.gateway.sandboxes import find_sandbox
from retinue.gateway.wire import FAR_FAULT, FAR_REPLICA, Refusal

GRACE_S = 1.0
"""How long a replica that no membership lists yet is waited for: the other gateway may have heard of it first."""
HANDSHAKES_MAX = 256
"""At once: a rollout batch may come in one instant, to a node that has little CPU to spare."""
LINGER_S = 1.0
"""How long the rest of a refused body is read and dropped, so that the refusal is not lost with it."""
UNSENT_BYTES = 16 * 1024
"""Of one answer, in the clear, before its replica is made to wait; asyncio's default for TLS is 512 KiB."""


class FarDoor:
    """Answers every request that reaches this node's hop port."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; why the replica has no answer is an answer too."""
        try:
            named = request.headers.get(FAR_REPLICA)
            if named is None:
                return web.Response(status=self._answer_gateway(request.raw_path))
            is_pinned = find_sandbox(request.raw_path, request.headers) != ""
            return await self._pass_on(request, await self._find(named, is_pinned), is_pinned)
        except Fault as fault:
            return _say(request, fault)
        except Refusal as refusal:
            return _say(request, Fault(Blame.OURS if refusal.is_ours else Blame.CALLER, str(refusal)))
        except ConnectionError:
            # The other gateway went away while it was being answered; nobody reads this.
            return web.Response(status=499)

    def _answer_gateway(self, path: str) -> int:
        """Answer what is asked of this gateway itself."""
        if path == WHETHER_CONTROLLER:
            return HAS_CONTROLLER if self._proxy.table.has_controller else HAS_NONE
        return 204 if path == PING else 404

    async def _find(self, named: str, is_pinned: bool) -> Slot:
        """Find the replica and incarnation that is asked for; `is_pinned`: no other will do, ready or not.

        Errors: Fault UNREACHED when this node has no such one: the caller's membership is older than ours.
        """
        replica, _, number = named.rpartition("#")
        incarnation = int(number) if number.isascii() and number.isdigit() else 0
        table, room, loop = self._proxy.table, self._proxy.room, asyncio.get_running_loop()
        until_s = loop.time() + GRACE_S
        while (slot := table.find_own(replica, incarnation)) is None:
            left_s = until_s - loop.time()
            if left_s <= 0 or room.is_full:
                raise Fault(Blame.UNREACHED, f"its node {table.node} does not list it")
            await room.wait(replica.partition("/")[0], left_s)
        if slot.backend.incarnation != incarnation:
            raise Fault(Blame.GONE, f"on its node {table.node} runs #{slot.backend.incarnation} by now")
        if slot.is_out_by_word and not is_pinned:
            raise Fault(Blame.UNREACHED, slot.cause)
        return slot

    async def _pass_on(self, request: web.BaseRequest, slot: Slot, is_pinned: bool) -> web.StreamResponse:
        """Answer from this very replica: tried once, never held.

        Errors: Fault, for the other gateway to judge: it has the client and knows the other replicas.
                Refusal when the request cannot be read.
        """
        proxy = self._proxy
        proxy.counts.far += 1
        body = RequestBody(request, proxy.budget, slot.service, proxy.table.find_rules(slot.service).memory_bytes)
        headers, now_s = list(request.headers.items()), asyncio.get_running_loop().time()
        exchange = Exchange(request, headers, slot.service, request.raw_path, body, False, now_s)
        try:
            # With an expectation the other gateway keeps the body until it is asked for, and may go elsewhere with it.
            if "Expect" in request.headers:
                body.leave()
            else:
                await body.load()
            if not is_pinned:
                await proxy.chooser.wait_free(slot)
            with proxy.table.count(slot, is_from_far=True):
                return await self._ask(exchange, slot)
        finally:
            body.close()

    async def _ask(self, exchange: Exchange, slot: Slot) -> web.StreamResponse:
        try:
            return await self._proxy.ask(exchange, slot)
        except Fault as fault:
            if fault.blame not in (Blame.CALLER, Blame.OURS):
                self._proxy.count_failure(slot, fault)
            raise


class FarServer(web.Server):
    """aiohttp's server behind the door; keeps little of what a slow gateway does not take."""

    def __init__(self, door: FarDoor) -> None:
        super().__init__(door.answer, lingering_time=LINGER_S, **SERVER_WORDS)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        super().connection_made(handler, transport)


@asynccontextmanager
async def open_far_door(hop: Hop | None, proxy: Proxy, pulse: Pulse, end_s: float) -> AsyncIterator[None]:
    """Serve other nodes' gateways while the context lasts; there are none in a run of one node."""
    if hop is None:
        yield
        return
    limit_tls_buffers()
    runner = web.ServerRunner(FarServer(FarDoor(proxy)), shutdown_timeout=end_s)
    await runner.setup()
    server = runner.server
    if server is None:
        raise RuntimeError("a runner that was set up has a server")
    admission = Admission(hop.listen, hop.server, server, HANDSHAKES_MAX, HANDSHAKE_S, pulse.watch)
    tasks = [asyncio.create_task(admission.run()), asyncio.create_task(pulse.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.cleanup()
        hop.listen.close()


def _say(request: web.BaseRequest, fault: Fault) -> web.Response:
    answer = web.Response(status=502, headers={FAR_FAULT: build_fault(fault)})
    if request.body_exists:
        # It may not have been read, and what follows would be taken for a request.
        answer.force_close()
    return answer
