"""The HTTP side of the checks: one check, a batch that streams, and what people look at.

A readable request is answered 200 with an outcome, whatever it is. A caller that goes
away takes its checks along. Never decides an outcome.
"""

import asyncio
from functools import partial

from aiohttp import web

from retinue.checks.body import BODY_BYTES_MAX, Batch, build_line, parse_body
from retinue.checks.host import Full, Host
from retinue.checks.metrics import read_metrics
from retinue.checks.quarantine import Check
from retinue.checks.records import CheckRequest
from retinue.serving.exposition import build_metrics
from retinue.serving.faults import Fault
from retinue.serving.pages import Page, Pages, Reader, build_answer, name_caller
from retinue.terms.outage import parse_since
from retinue.terms.outcome import Outcome

READ_BYTES = 1024 * 1024
NDJSON = "application/x-ndjson"

Finished = asyncio.Queue[tuple[int, asyncio.Future[Outcome]]]


class Desk:
    """Answers the requests of callers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reader = Reader(self._admit)
        pages: dict[str, dict[str, Page]] = {
            "/v1/check": {"POST": self._check},
            "/v1/checks": {"POST": self._check_many},
            "/v1/verifiers": {"GET": self._list_verifiers},
            "/v1/outages": {"GET": self._list_outages},
            "/health": {"GET": self._say_health},
            "/metrics": {"GET": self._say_metrics},
        }
        self._pages = Pages("checks", host.settings.service, pages)

    def build_server(self) -> web.Server:
        """Build the server; a handler is cancelled when its client goes."""
        return self._pages.build_server(READ_BYTES)

    # --- checks ---------------------------------------------------------------------

    async def _check(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self._read(request)
        checks = self._submit(request, [parse_body(body, CheckRequest)], len(body))
        try:
            outcome = await checks[0].outcome
        finally:
            self._host.cancel(checks[0])
        return build_answer(outcome)

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

    def _admit(self, coming_bytes: int, bytes_: int) -> None:
        if not self._host.has_room(1, coming_bytes + bytes_):
            raise _build_refusal(self._host.refuse(1))

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the whole body.

        Errors: Fault 413 above the limit, 429 when too much is being read or waits already, 400 when it breaks off.
        """
        too_large, broke_off = partial(Fault, 413, "checks_too_large"), partial(Fault, 400, "checks_unreadable")
        return await self._reader.read(request, BODY_BYTES_MAX, too_large, broke_off)

    def _submit(self, request: web.BaseRequest, wanted: list[CheckRequest], weight_bytes: int) -> list[Check]:
        try:
            return self._host.submit(wanted, name_caller(request), weight_bytes)
        except Full as full:
            raise _build_refusal(full) from None

    # --- what people look at ----------------------------------------------------------

    async def _list_verifiers(self, _request: web.BaseRequest) -> web.StreamResponse:
        nursery = self._host.nursery
        known = dict.fromkeys(self._host.settings.config.verifiers, "") | nursery.verifiers
        return build_answer({"verifiers": known, "limits": self._host.settings.limits, "rung": nursery.rung})

    async def _list_outages(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            since_utc = parse_since(request.query.get("since", ""))
        except ValueError as error:
            raise Fault(400, "checks_unreadable", str(error)) from None
        return build_answer({"outages": self._host.ledger.read(since_utc)})

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
        return build_answer(facts, 200 if is_ready else 503)

    async def _say_metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=build_metrics("retinue_checks_", read_metrics(self._host)), content_type="text/plain")


def _put(done: Finished, index: int, outcome: asyncio.Future[Outcome]) -> None:
    done.put_nowait((index, outcome))


def _build_refusal(full: Full) -> Fault:
    return Fault(429, "checks_full", str(full), full.retry_after_s)
