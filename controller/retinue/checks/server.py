"""The HTTP side of the checks: one check, a batch that streams, and what people look at.

A readable request is answered 200 with an outcome, whatever it is. A caller that goes
away takes its checks along. Never decides an outcome.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web

from retinue.checks.body import BODY_BYTES_MAX, Batch, Fault, build_error, build_line, parse_body
from retinue.checks.exposition import build_metrics
from retinue.checks.host import Full, Host
from retinue.checks.metrics import read_metrics
from retinue.checks.quarantine import Check
from retinue.checks.records import CheckRequest
from retinue.terms.outage import parse_since
from retinue.terms.outcome import Outcome
from retinue.terms.record import to_json

READ_BYTES = 1024 * 1024
CALLER = "X-Retinue-Caller"
JSON = "application/json"
NDJSON = "application/x-ndjson"

Finished = asyncio.Queue[tuple[int, asyncio.Future[Outcome]]]
Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Desk:
    """Answers the requests of callers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reading_bytes = 0
        """Of bodies that are still coming in."""
        self._pages: dict[str, dict[str, Page]] = {
            "/v1/check": {"POST": self._check},
            "/v1/checks": {"POST": self._check_many},
            "/v1/verifiers": {"GET": self._list_verifiers},
            "/v1/outages": {"GET": self._list_outages},
            "/health": {"GET": self._say_health},
            "/metrics": {"GET": self._say_metrics},
        }

    def build_server(self) -> web.Server:
        """Build the server; a handler is cancelled when its client goes."""
        return web.Server(
            self.answer, handler_cancellation=True, access_log=None, read_bufsize=READ_BYTES, auto_decompress=False
        )

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; a typed error is an answer too."""
        try:
            return await self._find_page(request)(request)
        except Fault as fault:
            headers = {"Retry-After": str(fault.retry_after_s)} if fault.retry_after_s is not None else {}
            body = build_error(fault, self._host.settings.service)
            response = web.Response(status=fault.status, headers=headers, body=body, content_type=JSON)
            if fault.status in (400, 413):
                # The rest of a body that was not read is not the next request.
                response.force_close()
            return response
        except ConnectionError:
            # The caller went away while it was being answered; nobody reads this.
            return web.Response(status=499)

    def _find_page(self, request: web.BaseRequest) -> Page:
        pages = self._pages.get(request.path)
        if pages is None:
            raise Fault(404, "checks_unknown_page", f"cannot find this page; there are {', '.join(self._pages)}")
        page = pages.get("GET" if request.method == "HEAD" else request.method)
        if page is None:
            raise Fault(405, "checks_wrong_method", f"cannot {request.method[:20]} this page; use {', '.join(pages)}")
        return page

    # --- checks ---------------------------------------------------------------------

    async def _check(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self._read(request)
        checks = self._submit(request, [parse_body(body, CheckRequest)], len(body))
        try:
            outcome = await checks[0].outcome
        finally:
            self._host.cancel(checks[0])
        return web.Response(body=to_json(outcome) + b"\n", content_type=JSON)

    async def _check_many(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self._read(request)
        wanted = parse_body(body, Batch).checks
        limit = self._host.settings.queue
        if len(wanted) > limit:
            raise Fault(413, "checks_too_many", f"cannot take {len(wanted)} checks in one batch: at most {limit}")
        checks = self._submit(request, wanted, len(body)) if wanted else []
        del body, wanted
        response = web.StreamResponse(headers={"Content-Type": NDJSON, "X-Accel-Buffering": "no"})
        done: Finished = asyncio.Queue()
        for index, check in enumerate(checks):
            check.outcome.add_done_callback(partial(_put, done, index))
        try:
            await response.prepare(request)
            left = len(checks)
            while left:
                lines = [await done.get()]
                while not done.empty():
                    lines.append(done.get_nowait())
                left -= len(lines)
                await response.write(b"".join(build_line(index, outcome.result()) for index, outcome in lines))
            await response.write_eof()
        finally:
            for check in checks:
                self._host.cancel(check)
        return response

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the whole body.

        Errors: Fault 413 above the limit, 429 when too much is being read or waits already, 400 when it breaks off.
        """
        size = request.content_length
        too_large = Fault(413, "checks_too_large", f"cannot take the body: it is longer than {BODY_BYTES_MAX} bytes")
        if (size or 0) > BODY_BYTES_MAX:
            raise too_large
        reserved = BODY_BYTES_MAX if size is None else size
        if not self._host.has_room(1, self._reading_bytes + reserved):
            raise _build_refusal(self._host.refuse(1))
        self._reading_bytes += reserved
        parts = bytearray()
        try:
            while part := await request.content.readany():
                parts += part
                if len(parts) > BODY_BYTES_MAX:
                    raise too_large
        except (web.RequestPayloadError, ConnectionError):
            raise Fault(400, "checks_unreadable", "cannot read the body: it broke off") from None
        finally:
            self._reading_bytes -= reserved
        return bytes(parts)

    def _submit(self, request: web.BaseRequest, wanted: list[CheckRequest], weight_bytes: int) -> list[Check]:
        caller = request.headers.get(CALLER) or f"connection {id(request.transport):x}"
        try:
            return self._host.submit(wanted, caller, weight_bytes)
        except Full as full:
            raise _build_refusal(full) from None

    # --- what people look at ----------------------------------------------------------

    async def _list_verifiers(self, _request: web.BaseRequest) -> web.StreamResponse:
        nursery = self._host.nursery
        known = dict.fromkeys(self._host.settings.config.verifiers, "") | nursery.verifiers
        return _answer({"verifiers": known, "limits": self._host.settings.limits, "rung": nursery.rung})

    async def _list_outages(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            since_utc = parse_since(request.query.get("since", ""))
        except ValueError as error:
            raise Fault(400, "checks_unreadable", str(error)) from None
        return _answer({"outages": self._host.ledger.read(since_utc)})

    async def _say_health(self, _request: web.BaseRequest) -> web.StreamResponse:
        host = self._host
        is_ready = host.nursery.is_ready and not host.is_stopping
        cause = "" if is_ready else host.nursery.cause or "no child is ready"
        facts = {
            "status": "ok" if is_ready else "not ready",
            "cause": "it stops" if host.is_stopping else cause,
            "rung": host.nursery.rung,
            "queued": host.queued_count,
            "running": host.running_count,
            "spares": host.nursery.spare_count,
        }
        return _answer(facts, 200 if is_ready else 503)

    async def _say_metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=build_metrics("retinue_checks_", read_metrics(self._host)), content_type="text/plain")


def _put(done: Finished, index: int, outcome: asyncio.Future[Outcome]) -> None:
    done.put_nowait((index, outcome))


def _build_refusal(full: Full) -> Fault:
    return Fault(429, "checks_full", str(full), full.retry_after_s)


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=to_json(value) + b"\n", status=status, content_type=JSON)
