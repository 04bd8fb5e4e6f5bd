"""The HTTP side of the simulator: chat of the OpenAI API, and what people look at."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from retinue.checks.body import Fault, build_error
from retinue.checks.exposition import Family, build_metrics, build_single
from retinue.simulator.lane import Full, Lane
from retinue.simulator.model import Model, ModelAway
from retinue.simulator.personas import ANY, Persona, choose_persona
from retinue.simulator.prompt import count_turns
from retinue.simulator.requests import ChatRequest, build_reply, build_stream, parse_request, refuse
from retinue.simulator.role import Said, Slip, Slipped
from retinue.simulator.settings import BODY_BYTES_MAX, STOP, TURN_LIMIT, Settings
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import to_json

CALLER = "X-Retinue-Caller"
JSON = "application/json"
OURS = 409
"""Our side failed: never a status that clients ask again for ever. The header says whose fault it was."""
AWAY = "simulator_model_away"

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Desk:
    """Answers the requests of callers."""

    def __init__(self, settings: Settings, personas: Mapping[str, Persona], model: Model) -> None:
        self.lane = Lane(settings.workers, settings.queue, settings.queue_bytes)
        self.failed: Counter[str] = Counter()
        """Requests without an answer by type of error."""
        self.ended: Counter[str] = Counter()
        self.said = self.attempts = 0
        self._settings = settings
        self._personas = personas
        self._model = model
        self._reading_bytes = 0
        """Of bodies that are still coming in."""
        self._pages: dict[str, dict[str, Page]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/models": {"GET": self._say_models},
            "/health": {"GET": self._say_health},
            "/metrics": {"GET": self._say_metrics},
        }

    def build_server(self) -> web.Server:
        """Build the server; a handler is cancelled when its client goes."""
        return web.Server(self.answer, handler_cancellation=True, access_log=None, auto_decompress=False)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; a typed error is an answer too."""
        try:
            return await self._find_page(request)(request)
        except Fault as fault:
            return self._build_refusal(fault)
        except Full as full:
            return self._build_refusal(Fault(429, "simulator_full", str(full), full.retry_after_s))
        except ConnectionError:
            # The caller went away while it was being answered; nobody reads this.
            return web.Response(status=499)

    def _build_refusal(self, fault: Fault) -> web.Response:
        headers = {"Retry-After": str(fault.retry_after_s)} if fault.retry_after_s is not None else {}
        if fault.status == OURS:
            headers |= {"X-Retinue-Outcome": OutcomeKind.INFRA_FAILED.value, "X-Should-Retry": "false"}
            self.failed[fault.kind] += 1
        body = build_error(fault, self._settings.service)
        response = web.Response(status=fault.status, headers=headers, body=body, content_type=JSON)
        if fault.status in (400, 413, 429):
            # The rest of a body that was not read is not the next request.
            response.force_close()
        return response

    def _find_page(self, request: web.BaseRequest) -> Page:
        pages = self._pages.get(request.path)
        if pages is None:
            raise Fault(404, "simulator_unknown_page", f"cannot find this page; there are {', '.join(self._pages)}")
        page = pages.get("GET" if request.method == "HEAD" else request.method)
        if page is None:
            what = f"cannot {request.method[:20]} this page; use {', '.join(pages)}"
            raise Fault(405, "simulator_wrong_method", what)
        return page

    # --- chat -------------------------------------------------------------------------

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self._read(request)
        wanted = parse_request(body)
        persona = choose_persona(self._personas, wanted.persona, wanted.model, wanted.seed or 0)
        if persona is None:
            raise refuse(f"no persona is called {(wanted.persona or wanted.model)[:100]!r}; GET /v1/models lists them")
        caller = request.headers.get(CALLER) or f"connection {id(request.transport):x}"
        said, attempts = await self._say(persona, wanted, caller, len(body))
        self.said += 1
        self.attempts += attempts
        self.ended.update([said.ended] if said.ended else [])
        turn = count_turns(wanted.messages) + 1
        reply = build_reply(said, persona.id, turn, attempts, int(time.time()))
        if wanted.stream:
            return web.Response(body=build_stream(reply), content_type="text/event-stream")
        return _answer(reply)

    async def _say(self, persona: Persona, wanted: ChatRequest, caller: str, weight: int) -> tuple[Said, int]:
        """Say the next message. Errors: Full; Fault 409 when it is no message that this person would say."""
        turns = count_turns(wanted.messages)
        limit = self._settings.turns if persona.turns_max is None else persona.turns_max
        if turns >= limit:
            return Said(STOP, ended=TURN_LIMIT), 0
        if not turns and persona.opening:
            return Said(persona.opening), 0
        try:
            async with self.lane.enter(caller, weight):
                return await self._model.say(persona, wanted)
        except Slipped as slipped:
            raise Fault(OURS, slipped.slip.value, f"cannot play {persona.id!r}: {slipped}") from None
        except ModelAway as away:
            raise Fault(OURS, AWAY, f"cannot play {persona.id!r}: cannot ask the model: {away}") from None

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the whole body.

        Errors: Fault 413 above the limit, 400 when it breaks off; Full when too much is being read or waits already.
        """
        size = request.content_length
        too_large = Fault(413, "simulator_too_large", f"cannot take the body: it is longer than {BODY_BYTES_MAX} bytes")
        if (size or 0) > BODY_BYTES_MAX:
            raise too_large
        reserved = BODY_BYTES_MAX if size is None else size
        self.lane.check_room(self._reading_bytes + reserved)
        self._reading_bytes += reserved
        parts = bytearray()
        try:
            while part := await request.content.readany():
                parts += part
                if len(parts) > BODY_BYTES_MAX:
                    raise too_large
        except (web.RequestPayloadError, ConnectionError):
            raise refuse("cannot read the body: it broke off") from None
        finally:
            self._reading_bytes -= reserved
        return bytes(parts)

    # --- what people look at ------------------------------------------------------------

    async def _say_models(self, _request: web.BaseRequest) -> web.StreamResponse:
        names = (ANY, *self._personas)
        return _answer({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def _say_health(self, _request: web.BaseRequest) -> web.StreamResponse:
        return _answer({"status": "ok", "queued": self.lane.queued, "running": self.lane.running})

    async def _say_metrics(self, _request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=build_metrics("retinue_simulator_", read_metrics(self)), content_type="text/plain")


def read_metrics(desk: Desk) -> list[Family]:
    """Read every family: name, kind, help, samples."""
    kinds = (*(slip.value for slip in Slip), AWAY)
    failed = [({"type": kind}, float(desk.failed[kind])) for kind in kinds]
    ended = [({"how": how}, float(count)) for how, count in sorted(desk.ended.items())]
    return [
        ("failed_total", "counter", "Requests that our side failed at, by type of error.", failed),
        ("ended_total", "counter", "Conversations that ended, by how.", ended),
        *build_single(
            (
                ("messages_total", "counter", "Messages that were said.", desk.said),
                ("attempts_total", "counter", "Messages of the model behind them.", desk.attempts),
                ("refused_total", "counter", "Requests refused because the queue was full.", desk.lane.refused),
                ("message_seconds_mean", "gauge", "Time of a message, lately.", desk.lane.mean_s),
                ("queued", "gauge", "Requests that wait.", desk.lane.queued),
                ("running", "gauge", "Requests that are under way.", desk.lane.running),
            )
        ),
    ]


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=to_json(value) + b"\n", status=status, content_type=JSON)
