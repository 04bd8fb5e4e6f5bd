"""The HTTP side of the simulator: chat of the OpenAI API, and what people look at."""

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial

from aiohttp import web

from retinue.serving.exposition import Family, build_metrics, build_single
from retinue.serving.faults import OURS, Fault
from retinue.serving.pages import UNREAD, Page, Pages, Reader, build_answer, name_caller
from retinue.simulator.lane import Full, Lane
from retinue.simulator.model import Model, ModelAway
from retinue.simulator.personas import ANY, Persona, choose_persona
from retinue.simulator.prompt import count_turns
from retinue.simulator.requests import ChatRequest, build_reply, build_stream, parse_request, refuse
from retinue.simulator.role import Said, Slip, Slipped
from retinue.simulator.settings import BODY_BYTES_MAX, STOP, TURN_LIMIT, Settings

AWAY = "simulator_model_away"


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
        self._reader = Reader(lambda coming_bytes, bytes_: self.lane.check_room(coming_bytes + bytes_))
        pages: dict[str, dict[str, Page]] = {
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/models": {"GET": self._say_models},
            "/health": {"GET": self._say_health},
            "/metrics": {"GET": self._say_metrics},
        }
        self._pages = Pages("simulator", settings.service, pages, unread=(*UNREAD, 429))

    def build_server(self) -> web.Server:
        """Build the server; a handler is cancelled when its client goes."""
        return self._pages.build_server()

    # --- chat -------------------------------------------------------------------------

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer_chat(request)
        except Full as full:
            raise Fault(429, "simulator_full", str(full), full.retry_after_s) from None

    async def _answer_chat(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await self._reader.read(request, BODY_BYTES_MAX, partial(Fault, 413, "simulator_too_large"), refuse)
        wanted = parse_request(body)
        persona = choose_persona(self._personas, wanted.persona, wanted.model, wanted.seed or 0)
        if persona is None:
            raise refuse(f"no persona is called {(wanted.persona or wanted.model)[:100]!r}; GET /v1/models lists them")
        said, attempts = await self._say(persona, wanted, name_caller(request), len(body))
        self.said += 1
        self.attempts += attempts
        self.ended.update([said.ended] if said.ended else [])
        turn = count_turns(wanted.messages) + 1
        reply = build_reply(said, persona.id, turn, attempts, int(time.time()))
        if wanted.stream:
            return web.Response(body=build_stream(reply), content_type="text/event-stream")
        return build_answer(reply)

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
            raise self._fail(slipped.slip.value, f"cannot play {persona.id!r}: {slipped}") from None
        except ModelAway as away:
            raise self._fail(AWAY, f"cannot play {persona.id!r}: cannot ask the model: {away}") from None

    def _fail(self, kind: str, message: str) -> Fault:
        self.failed[kind] += 1
        return Fault(OURS, kind, message)

    # --- what people look at ------------------------------------------------------------

    async def _say_models(self, _request: web.BaseRequest) -> web.StreamResponse:
        names = (ANY, *self._personas)
        return build_answer({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def _say_health(self, _request: web.BaseRequest) -> web.StreamResponse:
        return build_answer({"status": "ok", "queued": self.lane.queued, "running": self.lane.running})

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
