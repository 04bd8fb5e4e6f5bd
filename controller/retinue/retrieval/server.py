"""The HTTP side of retrieval: `POST /retrieve`, and what people look at. Never decides what is found."""

from functools import partial

from aiohttp import web

from retinue.errors import RetinueError
from retinue.retrieval.host import Full, Host, Job
from retinue.retrieval.index import Index
from retinue.retrieval.metrics import read_metrics
from retinue.retrieval.requests import build_reply, parse_request
from retinue.serving.exposition import build_metrics
from retinue.serving.faults import OURS, Fault
from retinue.serving.pages import JSON, Page, Pages, Reader, build_answer, name_caller

BODY_BYTES_MAX = 16 * 2**20
READ_BYTES = 256 * 1024


class Desk:
    """Answers the requests of callers."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reader = Reader(self._admit)
        pages: dict[str, dict[str, Page]] = {
            "/retrieve": {"POST": self._retrieve},
            "/v1/index": {"GET": self._say_index},
            "/health": {"GET": self._say_health},
            "/metrics": {"GET": self._say_metrics},
        }
        self._pages = Pages("retrieval", host.settings.service, pages)

    def build_server(self) -> web.Server:
        """Build the server; a handler is cancelled when its client goes."""
        return self._pages.build_server(READ_BYTES)

    # --- retrieve -------------------------------------------------------------------

    async def _retrieve(self, request: web.BaseRequest) -> web.StreamResponse:
        index = self._find_index()
        body = await self._read(request)
        settings = self._host.settings
        default = settings.method or index.methods[-1]
        wanted = parse_request(body, settings.top_k, index.methods, default)
        try:
            jobs = self._host.submit(wanted, name_caller(request), len(body))
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

    def _admit(self, coming_bytes: int, bytes_: int) -> None:
        if not self._host.has_room(1, coming_bytes + bytes_):
            raise _build_full(self._host.refuse(1))

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the whole body.

        Errors: Fault 413 above the limit, 429 when too much is being read or waits already, 400 when it breaks off.
        """
        too_large, broke_off = partial(Fault, 413, "retrieval_too_large"), partial(Fault, 400, "retrieval_bad_request")
        return await self._reader.read(request, BODY_BYTES_MAX, too_large, broke_off)

    # --- what people look at ----------------------------------------------------------

    async def _say_index(self, _request: web.BaseRequest) -> web.StreamResponse:
        index = self._host.index
        if index is None:
            return build_answer({"index": self._host.settings.index, "cause": self._host.cause})
        facts = index.facts
        return build_answer(
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
        return build_answer(facts, 200 if host.is_ready else 503)

    async def _say_metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        text = build_metrics("retinue_retrieval_", read_metrics(self._host))
        return web.Response(text=text, content_type="text/plain")


def _build_full(full: Full) -> Fault:
    return Fault(429, "retrieval_full", str(full), full.retry_after_s)
