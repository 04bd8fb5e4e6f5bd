"""The HTTP side of the sandboxes: makes the host's and the shards' answers into responses, and passes bodies on.

What a sandbox answers is passed on as it is. A caller that goes away takes its command along. Never decides an outcome.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from retinue.sandbox.host import Host
from retinue.sandbox.host_makes import Made, Wanted
from retinue.sandbox.host_seats import SeatView
from retinue.sandbox.requests import (
    LEASE_MAX_S,
    LEASE_MIN_S,
    QUEUE_MAX_S,
    CreateRequest,
    Fault,
    Quantity,
    check_create,
    parse_duration_within,
    parse_limits,
    refuse,
)
from retinue.sandbox.server_pages import build_fault, build_pages
from retinue.sandbox.shard_link import Exchange, ShardLost
from retinue.sandbox.shard_wire import CHUNK_BYTES, Answer, Body
from retinue.serving.pages import JSON, Page, Reader, build_answer, name_caller
from retinue.terms.record import DecodeError, Record, from_json, to_plain

READ_BYTES = 256 * 1024
CREATE_MAX_BYTES = 2**20
EXEC_MAX_BYTES = 24 * 2**20
READING_MAX_BYTES = 512 * 2**20
"""Of all bodies that are coming in at once."""
TYPES = {
    Body.JSON: JSON,
    Body.OCTETS: "application/octet-stream",
    Body.NDJSON_STREAM: "application/x-ndjson",
    Body.TAR_STREAM: "application/x-tar",
}
BoxPage = Callable[[web.BaseRequest, str, list[str]], Awaitable[web.StreamResponse]]


class RenewRequest(Record, frozen=True):
    """Body of `POST .../renew`."""

    lease_s: Quantity | None = None


class MadeView(Record, frozen=True, omit_defaults=False):
    """Answer to a create."""

    id: str
    node: str
    image: str
    wait_s: float
    start_s: float
    created_utc: float
    expires_utc: float
    is_new: bool


class Desk:
    """Answers the requests of callers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reader = Reader(_admit)
        self._pages: dict[str, dict[str, Page]] = {
            "/v1/sandboxes": {"POST": self._create, "GET": self._list},
            **build_pages(host),
        }
        self._box_pages: dict[str, dict[str, BoxPage]] = {
            "": {"GET": self._show, "DELETE": self._destroy},
            "renew": {"POST": self._renew},
            "exec": {"POST": self._exec},
            "processes": {"GET": self._process, "POST": self._process, "DELETE": self._process},
            "file": {"GET": self._use_file, "PUT": self._use_file, "DELETE": self._use_file},
            "files": {"GET": self._use_file},
            "stat": {"GET": self._use_file},
            "directory": {"POST": self._use_file},
            "archive": {"GET": self._use_file, "PUT": self._use_file},
        }

    def build_server(self) -> web.Server:
        """Build the server; a handler is cancelled when its client goes."""
        return web.Server(
            self.answer, handler_cancellation=True, access_log=None, read_bufsize=READ_BYTES, auto_decompress=False
        )

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; a typed error is an answer too."""
        try:
            return await self._route(request)
        except Fault as fault:
            return build_fault(fault, self._host.settings)
        except ConnectionError:
            # The caller went away while it was being answered; nobody reads this.
            return web.Response(status=499)

    async def _route(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        method = "GET" if request.method == "HEAD" else request.method
        if path in self._pages:
            page: Page = _choose(self._pages[path], method)
            return await page(request)
        parts = path.split("/")
        if len(parts) < 4 or parts[1:3] != ["v1", "sandboxes"] or not parts[3]:
            raise Fault(404, "sandbox_unknown_page", f"cannot find this page; there are {', '.join(self._pages)}")
        pages = self._box_pages.get(parts[4] if len(parts) > 4 else "")
        if pages is None:
            known = ", ".join(name for name in self._box_pages if name)
            raise Fault(404, "sandbox_unknown_page", f"cannot find this page of a sandbox; there are {known}")
        box_page: BoxPage = _choose(pages, method)
        return await box_page(request, parts[3], parts[5:])

    # --- sandboxes ------------------------------------------------------------------------

    async def _create(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = _parse(await self._read(request, CREATE_MAX_BYTES), CreateRequest)
        settings = self._host.settings
        wanted = Wanted(
            request=asked,
            uid=check_create(asked),
            limits=parse_limits(asked.limits, settings.limits),
            caller=name_caller(request),
            lease_s=parse_duration_within("lease_s", asked.lease_s, settings.lease_s, LEASE_MIN_S, LEASE_MAX_S),
            queue_s=parse_duration_within("queue_s", asked.queue_s, settings.queue_s, 0.0, QUEUE_MAX_S),
        )
        made = await self._host.make(wanted)
        return build_answer(_view_made(made, self._host.view(made.seat)), 201 if made.is_new else 200)

    async def _list(self, request: web.BaseRequest) -> web.StreamResponse:
        caller = request.query.get("caller")
        seats = [seat for seat in self._host.seats.list() if caller is None or seat.caller == caller]
        return build_answer({"sandboxes": [self._host.view(seat) for seat in seats]})

    async def _show(self, _request: web.BaseRequest, name: str, _rest: list[str]) -> web.StreamResponse:
        answer = await self._host.ask(name, "show")
        if answer.status != 200:
            return self._relay(name, answer)
        shown: dict[str, Any] = to_plain(self._host.view(self._host.seats.find(name)))
        return build_answer(shown | from_json(answer.body, dict[str, Any]))

    async def _destroy(self, _request: web.BaseRequest, name: str, _rest: list[str]) -> web.StreamResponse:
        try:
            await self._host.destroy(name)
        except Fault as fault:
            if fault.kind not in ("sandbox_destroyed", "sandbox_expired"):
                raise
        return build_answer({"id": name, "state": "destroyed"})

    async def _renew(self, request: web.BaseRequest, name: str, _rest: list[str]) -> web.StreamResponse:
        asked = _parse(await self._read(request, CREATE_MAX_BYTES) or b"{}", RenewRequest)
        lease_s = None
        if asked.lease_s is not None:
            lease_s = parse_duration_within("lease_s", asked.lease_s, 0.0, LEASE_MIN_S, LEASE_MAX_S)
        return build_answer({"id": name, "expires_utc": self._host.renew(name, lease_s).expires_utc})

    # --- commands -------------------------------------------------------------------------

    async def _exec(self, request: web.BaseRequest, name: str, _rest: list[str]) -> web.StreamResponse:
        self._host.seats.find(name)
        body = await self._read(request, EXEC_MAX_BYTES)
        async with self._host.opened(name, "exec", {}, body) as exchange:
            answer = await exchange.answer
            if not answer.kind.is_stream:
                return self._relay(name, answer)
            return await self._stream(request, exchange, answer)

    async def _process(self, request: web.BaseRequest, name: str, rest: list[str]) -> web.StreamResponse:
        words = dict(request.query)
        words["process"] = rest[0] if rest else ""
        does = {"GET": {"": "show", "output": "output"}, "DELETE": {"": "forget"}}.get(request.method)
        does = does or {verb: verb for verb in ("signal", "kill", "stdin")}
        words["do"] = does.get(rest[1] if len(rest) > 1 else "", "") if rest else "list"
        if not words["do"] or (not rest and request.method != "GET"):
            raise Fault(404, "sandbox_unknown_page", "cannot find this page of a process")
        body = await self._read(request, EXEC_MAX_BYTES)
        return self._relay(name, await self._host.ask(name, "process", words, body))

    # --- files ----------------------------------------------------------------------------

    async def _use_file(self, request: web.BaseRequest, name: str, _rest: list[str]) -> web.StreamResponse:
        words = dict(request.query)
        words["do"] = f"{request.method.lower()} {request.path.rpartition('/')[2]}"
        if "path" not in words:
            raise refuse("cannot use a file: the query has no path")
        async with self._host.opened(name, "file", words, b"") as exchange:
            sending: asyncio.Future[None] = asyncio.ensure_future(_send_body(request, exchange))
            try:
                waiting: set[asyncio.Future[Any]] = {exchange.answer, sending}
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and sending.exception() is not None:
                    raise refuse("cannot read the body: it broke off")
                answer = await exchange.answer
                if answer.kind.is_stream:
                    return await self._stream(request, exchange, answer)
            finally:
                is_unread = not sending.done()
                sending.cancel()
                await asyncio.wait([sending])
            response = self._relay(name, answer)
            if is_unread:
                # The rest of a body that was not read is not the next request.
                response.force_close()
            return response

    # --- passing on -----------------------------------------------------------------------

    async def _read(self, request: web.BaseRequest, limit: int) -> bytes:
        """Read the whole body.

        Errors: Fault 413 above the limit, 429 when too much is being read, 400 when it breaks off.
        """
        if not request.body_exists:
            return b""
        return await self._reader.read(request, limit, partial(Fault, 413, "sandbox_too_large"), refuse)

    def _relay(self, name: str, answer: Answer) -> web.Response:
        """Pass a shard's answer on; of a sandbox that is gone the host knows more."""
        if answer.status == 410:
            self._host.seats.find(name)
        return web.Response(
            status=answer.status, body=answer.body, content_type=TYPES[answer.kind], headers=answer.headers
        )

    async def _stream(self, request: web.BaseRequest, exchange: Exchange, answer: Answer) -> web.StreamResponse:
        headers = {"Content-Type": TYPES[answer.kind], "X-Accel-Buffering": "no"} | answer.headers
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        try:
            while chunk := await exchange.receive():
                await response.write(chunk)
        except ShardLost:
            # Cut off, not ended: nobody shall take what came for the whole.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("a stream broke off") from None
        await response.write_eof()
        return response


def _admit(coming_bytes: int, bytes_: int) -> None:
    if coming_bytes and coming_bytes + bytes_ > READING_MAX_BYTES:
        raise Fault(429, "sandbox_full", "cannot take the body: too many are being read", retry_after_s=1)


def _choose(pages: dict[str, Any], method: str) -> Any:
    page = pages.get(method)
    if page is None:
        raise Fault(405, "sandbox_wrong_method", f"cannot {method[:20]} this page; use {', '.join(pages)}")
    return page


def _parse(body: bytes, kind: type[Any]) -> Any:
    try:
        return from_json(body, kind)
    except DecodeError as error:
        raise refuse(f"cannot read the body: {error}") from None


def _view_made(made: Made, seen: SeatView) -> MadeView:
    return MadeView(
        seen.id, seen.node, seen.image, made.wait_s, made.start_s, seen.created_utc, seen.expires_utc, made.is_new
    )


async def _send_body(request: web.BaseRequest, exchange: Exchange) -> None:
    """Pass a body on as it comes; one that breaks off is never ended, so that nobody takes it for whole."""
    while request.body_exists and (part := await request.content.readany()):
        for at in range(0, len(part), CHUNK_BYTES):
            await exchange.send(part[at : at + CHUNK_BYTES])
    exchange.end()
