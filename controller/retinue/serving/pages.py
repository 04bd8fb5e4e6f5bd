"""The HTTP side that every service has: who answers a path, what a fault looks like, and how a body is read."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from retinue.serving.faults import OURS, Fault, build_error
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import to_json

READ_BYTES = 64 * 1024
"""aiohttp's own."""
CALLER = "X-Retinue-Caller"
JSON = "application/json"
UNREAD = (400, 413)
"""After a fault of these a body may not have been read: its rest is not the next request."""

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
BuildError = Callable[[str], Exception]
"""From words to what is raised: each service has errors of its own."""


class Pages:
    """Finds who answers a request, and makes an answer of a fault."""

    def __init__(
        self, kind: str, service: str, pages: Mapping[str, Mapping[str, Page]], unread: tuple[int, ...] = UNREAD
    ) -> None:
        """Begin. `kind` heads the types of errors (`checks_unknown_page`); `pages`: path -> method -> page."""
        self._kind, self._service = kind, service
        self._pages = pages
        self._unread = unread

    def build_server(self, read_bytes: int = READ_BYTES) -> web.Server:
        """Build the server; a handler is cancelled when its client goes."""
        return web.Server(
            self.answer, handler_cancellation=True, access_log=None, read_bufsize=read_bytes, auto_decompress=False
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
        body = build_error(fault, self._service)
        response = web.Response(status=fault.status, headers=headers, body=body, content_type=JSON)
        if fault.status in self._unread:
            response.force_close()
        return response

    def _find_page(self, request: web.BaseRequest) -> Page:
        pages = self._pages.get(request.path)
        if pages is None:
            known = ", ".join(self._pages)
            raise Fault(404, f"{self._kind}_unknown_page", f"cannot find this page; there are {known}")
        page = pages.get("GET" if request.method == "HEAD" else request.method)
        if page is None:
            what = f"cannot {request.method[:20]} this page; use {', '.join(pages)}"
            raise Fault(405, f"{self._kind}_wrong_method", what)
        return page


class Reader:
    """Reads bodies, and knows how many bytes of them are still coming in."""

    def __init__(self, admit: Callable[[int, int], None]) -> None:
        """Begin. `admit` is given the bytes that are coming in already and those of this body; it raises what
        refuses the request."""
        self._admit = admit
        self._coming_bytes = 0

    async def read(
        self,
        request: web.BaseRequest,
        limit: int,
        too_large: Callable[[str], Exception],
        broke_off: Callable[[str], Exception],
    ) -> bytes:
        """Read the whole body.

        Errors: what `too_large` builds above the limit, what `broke_off` builds, what `admit` raises.
        """
        size = request.content_length
        words = f"cannot take the body: it is longer than {limit} bytes"
        if (size or 0) > limit:
            raise too_large(words)
        reserved = limit if size is None else size
        self._admit(self._coming_bytes, reserved)
        self._coming_bytes += reserved
        parts = bytearray()
        try:
            while part := await request.content.readany():
                parts += part
                if len(parts) > limit:
                    raise too_large(words)
        except (web.RequestPayloadError, ConnectionError):
            raise broke_off("cannot read the body: it broke off") from None
        finally:
            self._coming_bytes -= reserved
        return bytes(parts)


def name_caller(request: web.BaseRequest) -> str:
    """Name who asks: by its header, else by its connection."""
    return request.headers.get(CALLER) or f"connection {id(request.transport):x}"


def build_answer(value: Any, status: int = 200) -> web.Response:
    """Build an answer of JSON."""
    return web.Response(body=to_json(value) + b"\n", status=status, content_type=JSON)
