"""The gateway's own door: who may call, which service is meant, and its own few pages.

`/<service>/...` is forwarded; `/` lists the services; `/-/health` and `/-/metrics` are the gateway's, and
`/metrics` too where no service has that name.
"""

import asyncio
from typing import Any

from aiohttp import web

from retinue.channel.messages import GatewayFacts
from retinue.gateway.caller import Doorkeeper
from retinue.gateway.metrics import say_metrics
from retinue.gateway.notes import log
from retinue.gateway.proxy import Proxy
from retinue.gateway.upstream import HEADER_BYTES, READ_BYTES
from retinue.gateway.wire import Refusal, build_error, is_websocket, split_target
from retinue.terms.record import Record, to_json

SERVER_WORDS: dict[str, Any] = {
    "handler_cancellation": True,
    "access_log": None,
    "logger": log,
    "auto_decompress": False,
    "read_bufsize": READ_BYTES,
    "max_line_size": HEADER_BYTES,
    "max_field_size": HEADER_BYTES,
}
"""How requests are read, from clients and from other gateways."""


class Door(web.Server):
    """aiohttp's server, told who is at the other end of each connection as it is accepted."""

    def __init__(self, front: "Front", doorkeeper: Doorkeeper) -> None:
        super().__init__(front.answer, **SERVER_WORDS)
        self._doorkeeper = doorkeeper

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._doorkeeper.admit(handler, transport.get_extra_info("peername"), transport.get_extra_info("sockname"))

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self._doorkeeper.forget(handler)
        super().connection_lost(handler, exc)


class ServiceFacts(Record, frozen=True):
    """One service in the list at `/`."""

    url: str
    is_ready: bool
    backends: int
    in_flight: int


class Front:
    """Answers every request that reaches this gateway."""

    def __init__(self, doorkeeper: Doorkeeper, proxy: Proxy) -> None:
        self._doorkeeper = doorkeeper
        self._proxy = proxy

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; a typed error is an answer too."""
        try:
            return await self._route(request)
        except Refusal as refusal:
            self._proxy.counts.failed += refusal.is_ours
            body, headers = build_error(refusal)
            response = web.Response(status=refusal.status, headers=headers, body=body)
            if refusal.status in (400, 417, 501):
                # What follows on this connection may not be the request it looks like.
                response.force_close()
            return response
        except ConnectionError:
            # The client went away while it was being answered; nobody reads this.
            return web.Response(status=499)

    def read_facts(self) -> GatewayFacts:
        """Return what the controller is told."""
        proxy = self._proxy
        return GatewayFacts(
            requests=proxy.counts.requests,
            held=proxy.room.count,
            held_total=proxy.counts.held,
            failed=proxy.counts.failed,
            retried=proxy.counts.retried,
            in_flight=dict(proxy.table.in_flight),
            dropped=proxy.table.dropped(),
        )

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = request.headers
        keys = headers.getall("Authorization", ()), headers.getall("X-API-Key", ())
        if not self._doorkeeper.may_call(request.protocol, *keys):
            raise Refusal(
                403,
                "retinue_forbidden",
                "cannot answer: you are not the run's owner; send the run's token as `Authorization: Bearer TOKEN`"
                " or `X-API-Key: TOKEN`",
            )
        if request.method == "CONNECT":
            raise Refusal(501, "retinue_unsupported", "cannot tunnel: this is not a forward proxy")
        service, target = split_target(request.raw_path)
        if service in ("", "-"):
            return self._answer_own(service, target)
        if service == "metrics" and target == "/" and not self._proxy.table.is_known(service):
            # Where scrapers look first.
            return self._say_metrics()
        if is_websocket(headers.items()):
            raise Refusal(501, "retinue_unsupported", "cannot pass WebSocket on: not supported yet", service)
        self._proxy.counts.requests += 1
        passed_on = self._doorkeeper.list_passed_on(headers.items(), self._proxy.table.wants_token(service))
        return await self._proxy.forward(request, passed_on, service, target)

    def _answer_own(self, service: str, target: str) -> web.Response:
        path = target.partition("?")[0]
        if service == "" and path == "/":
            return _answer_json(self._list_services())
        if service == "-" and path == "/health":
            return _answer_json({"status": "ok", "epoch": self._proxy.table.epoch, "node": self._proxy.table.node})
        if service == "-" and path == "/metrics":
            return self._say_metrics()
        raise Refusal(404, "retinue_unknown_page", "cannot find this page; there are /, /-/health and /-/metrics")

    def _say_metrics(self) -> web.Response:
        return web.Response(text=say_metrics(self._proxy), content_type="text/plain")

    def _list_services(self) -> dict[str, dict[str, ServiceFacts]]:
        table = self._proxy.table
        return {
            "services": {
                name: ServiceFacts(
                    url=f"/{name}",
                    is_ready=any(slot.is_trusted for slot in service.slots),
                    backends=len(service.slots),
                    in_flight=table.in_flight.get(name, 0),
                )
                for name, service in table.services.items()
            }
        }


def _answer_json(value: object) -> web.Response:
    return web.Response(body=to_json(value) + b"\n", content_type="application/json")
