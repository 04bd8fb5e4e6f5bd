"""The HTTP side of retrieval: `POST /retrieve`, and what people look at. Never decides what is found."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from retinue.checks.body import Fault, build_error
from retinue.checks.exposition import build_metrics
from retinue.errors import RetinueError
from retinue.retrieval.host import Full, Host, Job
from retinue.retrieval.index import Index
from retinue.retrieval.metrics import read_metrics
from retinue.retrieval.requests import build_reply, parse_request
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import to_json

BODY_BYTES_MAX = 16 * 2**20
READ_BYTES = 256 * 1024
CALLER = "X-Retinue-Caller"
JSON = "application/json"
OURS = 409
"""Our side failed: never a status that clients ask again for ever. The header says whose fault it was."""

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Desk:
    """Answers the requests of callers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reading_bytes = 0
        """Of bodies that are still coming in."""
        self._pages: dict[str, dict[str, Page]] = {
            "/retrieve": {"POST": self._retrieve},
            "/v1/index": {"GET": self._say_index},
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
            return self._build_refusal(fault)
        except ConnectionError:
            # The caller went away while it was being answered; nobody reads this.
            return web.Response(status=499)

    def _build_refusal(self, fault: Fault) -> web.Response:
        headers = {"Retry-After": str(fault.retry_after_s)} if fault.retry_after_s is not None else {}
        if fault.status == OURS:
            headers |= {"X-Retinue-Outcome": OutcomeKind.INFRA_FAILED.value, "X-Should-Retry": "false"}
        body = build_error(fault, self._host.settings.service)
        response = web.Response(status=fault.status, headers=headers, body=body, content_type=JSON)
        if fault.status in (400, 413):
            # The rest of a body that was not read is not the next request.
            response.force_close()
        return response

    def _find_page(self, request: web.BaseRequest) -> Page:
        pages = self._pages.get(request.path)
        if pages is None:
            raise Fault(404, "retrieval_unknown_page", f"cannot find this page; there are {', '.join(self._pages)}")
        page = pages.get("GET" if request.method == "HEAD" else request.method)
        if page is None:
            what = f"cannot {request.method[:20]} this page; use {', '.join(pages)}"
            raise Fault(405, "retrieval_wrong_method", what)
        return page

    # --- retrieve -------------------------------------------------------------------

    async def _retrieve(self, request: web.BaseRequest) -> web.StreamResponse:
        index = self._find_index()
        body = await self._read(request)
        settings = self._host.settings
        default = settings.method or index.methods[-1]
        wanted = parse_request(body, settings.top_k, index.methods, default)
        caller = request.headers.get(CALLER) or f"connection {id(request.transport):x}"
        try:
            jobs = self._host.submit(wanted, caller, len(body))
        except Full as full:
            raise _build_full(full) from None
        del body, wanted
        return web.Response(body=build_reply(await self._gather(jobs)), content_type=JSON)

    def _find_index(self) -> Index:
        host = self._host
        if host.index is not None and host.is_ready:
            return host.index
        if host.index is None and not host.broken.done():
            raise Fault(503, "retrieval_loading", f"cannot search yet: {host.cause}", retry_after_s=1)
        raise Fault(OURS, "retrieval_unusable", f"cannot search: {host.cause}")

    async def _gather(self, jobs: list[Job]) -> list[bytes]:
        """Wait for all pieces. Errors: Fault 409 when our side failed at one: half an answer would pass for a whole."""
        try:
            return [await job.piece for job in jobs]
        except RetinueError as error:
            raise Fault(OURS, "retrieval_failed", f"cannot search: {error}") from None
        finally:
            self._host.cancel(jobs)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the whole body.

        Errors: Fault 413 above the limit, 429 when too much is being read or waits already, 400 when it breaks off.
        """
        size = request.content_length
        too_large = Fault(413, "retrieval_too_large", f"cannot take the body: it is longer than {BODY_BYTES_MAX} bytes")
        if (size or 0) > BODY_BYTES_MAX:
            raise too_large
        reserved = BODY_BYTES_MAX if size is None else size
        if not self._host.has_room(1, self._reading_bytes + reserved):
            raise _build_full(self._host.refuse(1))
        self._reading_bytes += reserved
        parts = bytearray()
        try:
            while part := await request.content.readany():
                parts += part
                if len(parts) > BODY_BYTES_MAX:
                    raise too_large
        except (web.RequestPayloadError, ConnectionError):
            raise Fault(400, "retrieval_bad_request", "cannot read the body: it broke off") from None
        finally:
            self._reading_bytes -= reserved
        return bytes(parts)

    # --- what people look at ----------------------------------------------------------

    async def _say_index(self, _request: web.BaseRequest) -> web.StreamResponse:
        index = self._host.index
        if index is None:
            return _answer({"index": self._host.settings.index, "cause": self._host.cause})
        facts = index.facts
        return _answer(
            {
                "index": self._host.settings.index,
                "corpus": facts.corpus,
                "passages": facts.passages,
                "analyzer": facts.recipe.analyzer,
                "embedder": facts.recipe.embedder,
                "methods": index.methods,
                "made_by": facts.made_by,
            }
        )

    async def _say_health(self, _request: web.BaseRequest) -> web.StreamResponse:
        host = self._host
        facts = {
            "status": "ok" if host.is_ready else "not ready",
            "cause": host.cause,
            "queued": host.queued,
            "running": host.running,
        }
        return _answer(facts, 200 if host.is_ready else 503)

    async def _say_metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        text = build_metrics("retinue_retrieval_", read_metrics(self._host))
        return web.Response(text=text, content_type="text/plain")


def _build_full(full: Full) -> Fault:
    return Fault(429, "retrieval_full", str(full), full.retry_after_s)


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=to_json(value) + b"\n", status=status, content_type=JSON)
