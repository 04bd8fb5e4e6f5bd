"""The model that plays: asked until one of its messages is what the person would say, a few times at most.

Reached as a rollout reaches a service: by the run's own URL, which stays the same over restarts. What the model
answers is never quoted in an error: it has read the goal.
"""

import json
import os
import re
from typing import Any

from retinue.client.answer import Broken
from retinue.client.asking import Line, translate_trouble
from retinue.client.http import Unreached, parse_target
from retinue.client.patience import Again, Trouble
from retinue.client.persevering import GivenUp, persevere
from retinue.client.pools import Pools
from retinue.client.reply import read_refusal
from retinue.client.site import Site, find_url
from retinue.errors import RetinueError
from retinue.simulator.personas import Persona
from retinue.simulator.prompt import build_prompt, count_turns, derive_seed
from retinue.simulator.requests import ChatRequest, list_tools
from retinue.simulator.role import Said, Slip, Slipped, check_calls, check_said
from retinue.simulator.settings import Settings
from retinue.terms.record import DecodeError, Record, from_json

ANSWER_BYTES_MAX = 4 * 2**20
AGAIN_TEMPERATURE = 0.5
"""At least, when asked again: at 0 it would say the same."""
_CONTEXT = re.compile(rb"context|too long|maximum.{0,20}length|exceed", re.IGNORECASE)
_EVENT = re.compile(r"[a-z0-9_ ]{1,60}")


class ModelAway(Exception):
    """The model gave no answer: an outage, in words that quote nothing of it."""


class _Message(Record, frozen=True):
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class _Choice(Record, frozen=True):
    message: _Message
    finish_reason: str | None = None


class _Usage(Record, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Completion(Record, frozen=True):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Model(Record, frozen=True):
    id: str


class _Models(Record, frozen=True):
    data: list[_Model]


class Model:
    """The way to the model; connections are kept."""

    def __init__(self, settings: Settings, site: Site, service: str) -> None:
        self._settings = settings
        self._site = site
        self._service = service
        self._pools = Pools()
        self._name = settings.model

    async def say(self, persona: Persona, request: ChatRequest) -> tuple[Said, int]:
        """Say the person's next message: (message, attempts).

        Errors: Slipped when the last attempt slipped too; ModelAway when there is no answer.
        """
        turn = Turn(self._settings, persona, request)
        line = self._open_line()
        reply = await persevere(lambda: self._ask_once(line, turn), self._settings.answer_s + line.hold_s, line.chance)
        if isinstance(reply, GivenUp):
            if turn.slipped is not None:
                raise turn.slipped
            event = reply.last.event if reply.last is not None else ""
            raise ModelAway(f"no answer after {reply.waited_s:.1f} s{_quote_event(event)}")
        return reply, turn.attempts

    async def close(self) -> None:
        """Close idle connections."""
        await self._pools.close()

    def _open_line(self) -> Line:
        try:
            target = parse_target(find_url(self._site, self._service))
        except RetinueError as error:
            raise ModelAway(str(error)) from None
        headers = {"Content-Type": "application/json", "X-Retinue-Caller": f"{self._settings.service}:{os.getpid()}"}
        if self._site.token:
            headers["Authorization"] = f"Bearer {self._site.token}"
        return Line(self._pools.find(), target, self._service, self._site.node, headers, self._site.hold_s)

    async def _ask_once(self, line: Line, turn: "Turn") -> Said | Again:
        try:
            if not self._name:
                status, headers, text = await _exchange(line, "GET", "/v1/models", b"")
                if status != 200:
                    return self._refuse(status, headers, text)
                self._name = _read_name(text)
            status, headers, text = await _exchange(line, "POST", "/v1/chat/completions", turn.build_body(self._name))
        except (Unreached, Broken) as error:
            return translate_trouble(error)
        if status != 200:
            return self._refuse(status, headers, text)
        return turn.read(text)

    def _refuse(self, status: int, headers: dict[str, str], text: bytes) -> Again:
        """Read a refusal. Errors: Slipped when the prompt does not fit; ModelAway when asking again gives the same."""
        found = read_refusal(status, headers, text, self._service)
        if isinstance(found, Again):
            return found
        if status in (400, 413, 422) and _CONTEXT.search(text):
            raise Slipped(Slip.CONTEXT_FULL, "the conversation does not fit into the model's context")
        raise ModelAway(f"it answered {status}{_quote_event(found.event)}")


class Turn:
    """One message of the user, over its attempts."""

    def __init__(self, settings: Settings, persona: Persona, request: ChatRequest) -> None:
        self.attempts = 0
        self.slipped: Slipped | None = None
        self._persona = persona
        self._settings = settings
        self._seed = request.seed or 0
        self._turn = count_turns(request.messages) + 1
        self._tools = list_tools(request)
        limit = request.max_completion_tokens or request.max_tokens or settings.max_tokens
        self._fields: dict[str, Any] = {
            "messages": build_prompt(persona, request.messages, settings.message_chars, settings.history_chars),
            "max_tokens": min(limit, settings.max_tokens),
            "temperature": settings.temperature if request.temperature is None else request.temperature,
        }
        if request.tools:
            self._fields |= {"tools": request.tools, "tool_choice": "auto"}

    def build_body(self, model: str) -> bytes:
        """Build the next attempt's request."""
        fields = {**self._fields, "model": model}
        fields["seed"] = derive_seed(self._seed, self._persona.id, self._turn, self.attempts)
        if self.attempts:
            fields["temperature"] = max(fields["temperature"], AGAIN_TEMPERATURE)
        return json.dumps(fields).encode()

    def read(self, body: bytes) -> Said | Again:
        """Read an attempt. Errors: Slipped when it was the last one."""
        self.attempts += 1
        try:
            return self._check(body)
        except Slipped as slipped:
            self.slipped = slipped
            if self.attempts >= self._settings.attempts:
                raise
            return Again(Trouble.BUSY, slipped.slip.value, "", after_s=0.0)

    def _check(self, body: bytes) -> Said:
        try:
            completion = from_json(body, _Completion)
            choice = completion.choices[0]
        except (DecodeError, IndexError):
            raise Slipped(Slip.UNREADABLE, "its answer is no chat completion") from None
        if choice.finish_reason == "length":
            raise Slipped(Slip.CONTEXT_FULL, "its message broke off at the token limit")
        text = (choice.message.content or "").strip()
        calls = check_calls(choice.message.tool_calls or [], self._tools)
        if not text and not calls:
            raise Slipped(Slip.UNREADABLE, "it said nothing")
        ended = check_said(text, self._persona, self._turn)
        usage = completion.usage or _Usage()
        counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        return Said(text, calls, counts | {"total_tokens": sum(counts.values())}, None if calls else ended)


async def _exchange(line: Line, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    async with line.pool.ask(line.target, method, path, line.headers, body) as answer:
        return answer.status, answer.headers, await answer.read_whole(ANSWER_BYTES_MAX)


def _read_name(text: bytes) -> str:
    try:
        return from_json(text, _Models).data[0].id
    except (DecodeError, IndexError):
        raise Broken("unreadable answer: it names no model") from None


def _quote_event(event: str) -> str:
    """Quote a word of ours; what may be a server's own text is left out."""
    return f" ({event})" if _EVENT.fullmatch(event) else ""
