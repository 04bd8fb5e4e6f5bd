"""`judge`: messages in, an answer of the asked form out; an outage, or an answer nobody can read, is our side's fault.

A judge that talks past its schema is asked again, a few times, never quite the same. The
policy has no part in it: no failure here is ever a number.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from retinue.client.answer import Broken
from retinue.client.asking import Line, translate_trouble
from retinue.client.http import Unreached
from retinue.client.judge_records import Judged, JudgedKind
from retinue.client.judge_schema import check_schema, read_answer
from retinue.client.patience import Again, Trouble
from retinue.client.persevering import GivenUp, persevere
from retinue.client.reply import read_refusal
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import DecodeError, Record, from_json, replace

ANSWER_S = 120.0
"""For the answer itself, where the caller does not say how long the call may take."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
UNREADABLE_MAX = 3
"""Answers that cannot be read before the judge has failed."""
ERRORS_MAX = 5
"""5xx of the engine before it has failed: one that breaks at this very prompt does so every time."""
AGAIN_TEMPERATURE = 0.5
"""At least, when asked again: at 0 it would say the same."""


class JudgeOptions(TypedDict, total=False):
    """How a judge is to answer; what is left out is as written here."""

    model: str
    """None: the first that the service names."""
    max_tokens: int
    """512."""
    temperature: float
    """0.0."""
    seed: int
    """0."""
    extra: Mapping[str, Any]
    """Further fields of the request, `{"chat_template_kwargs": {"enable_thinking": False}}`."""
    rollout_id: str


@dataclass(frozen=True, slots=True)
class Question:
    """One call whose arguments are right."""

    fields: Mapping[str, Any]
    """The request without its model."""
    model: str
    """Empty: to be asked."""
    schema: Mapping[str, Any] | None
    rollout_id: str | None


class _Message(Record, frozen=True):
    content: str | None = None


class _Choice(Record, frozen=True):
    message: _Message
    finish_reason: str | None = None


class _Completion(Record, frozen=True):
    choices: list[_Choice]


class _Model(Record, frozen=True):
    id: str


class _Models(Record, frozen=True):
    data: list[_Model]


def check_judge(
    messages: str | Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None, options: JudgeOptions
) -> Question:
    """Check a call's arguments.

    Errors: TypeError, ValueError: the caller's program is wrong.
    """
    unknown = sorted(set(options) - set(JudgeOptions.__annotations__))
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; there are {', '.join(JudgeOptions.__annotations__)}")
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if not turns:
        raise ValueError("messages is empty")
    for index, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), str):
            raise TypeError(f"message {index} is no mapping with a role")
    max_tokens = options.get("max_tokens", 512)
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens!r}, not a number of tokens")
    fields: dict[str, Any] = {
        **options.get("extra", {}),
        "messages": turns,
        "max_tokens": max_tokens,
        "temperature": options.get("temperature", 0.0),
        "seed": options.get("seed", 0),
    }
    if schema is not None:
        check_schema(schema)
        named = {"name": "answer", "schema": schema, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": named}
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(f"messages, schema and extra must be JSON: {error}") from None
    return Question(fields, options.get("model", ""), schema, options.get("rollout_id"))


async def judge(line: Line, question: Question, models: dict[str, str], deadline_s: float | None) -> Judged:
    """Ask until there is an answer that can be read, or it is clear that there will be none.

    Shape:  `models` remembers which model a service has.
    """
    started_s = asyncio.get_running_loop().time()
    asking = _Asking(line, question, models)
    limit_s = line.hold_s + ANSWER_S if deadline_s is None else deadline_s
    reply: Judged | GivenUp = await persevere(asking.ask_once, limit_s, line.chance)
    if isinstance(reply, GivenUp):
        last = reply.last
        more = f"; last: {last.reason or last.event}" if last is not None else ""
        what = "no answer" if reply.what == "no outcome" else reply.what
        reply = asking.fail(f"{what} after {reply.waited_s:.1f} s{more}", last.event if last else "deadline passed")
    wall_s = asyncio.get_running_loop().time() - started_s
    return replace(reply, wall_s=wall_s, attempts=asking.attempts, rollout_id=question.rollout_id)


@dataclass(slots=True)
class _Asking:
    """One call, over its attempts."""

    line: Line
    question: Question
    models: dict[str, str]
    attempts: int = 0
    errors: int = 0
    said: str = field(default="", init=False)

    async def ask_once(self) -> Judged | Again:
        """Ask once."""
        try:
            model = self.question.model or self.models.get(self.line.service) or await self._ask_model()
            if not isinstance(model, str):
                return model
            status, headers, text = await self._exchange("POST", "/v1/chat/completions", self._build_body(model))
            if status == 200:
                return self._read(text)
        except (Unreached, Broken) as error:
            return translate_trouble(error)
        return self._refuse(status, headers, text)

    def fail(self, why: str, event: str) -> Judged:
        """Build the outcome of a call that got no answer: ours, so never a number."""
        line = self.line
        return Judged(
            JudgedKind.INFRA_FAILED,
            text=self.said,
            reason=f"cannot judge at {line.service} ({line.target.url}): {why}",
            node=line.node,
            service=line.service,
            event=event,
        )

    async def _ask_model(self) -> str | Judged | Again:
        status, headers, text = await self._exchange("GET", "/v1/models", b"")
        if status != 200:
            return self._refuse(status, headers, text)
        try:
            model = from_json(text, _Models).data[0].id
        except (DecodeError, IndexError):
            raise Broken("unreadable answer: it names no model") from None
        self.models[self.line.service] = model
        return model

    async def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        async with self.line.pool.ask(self.line.target, method, path, self.line.headers, body) as answer:
            return answer.status, answer.headers, await answer.read_whole(ANSWER_BYTES_MAX)

    def _build_body(self, model: str) -> bytes:
        fields = {**self.question.fields, "model": model}
        if self.attempts:
            fields["seed"] += self.attempts
            fields["temperature"] = max(fields["temperature"], AGAIN_TEMPERATURE)
        return json.dumps(fields).encode()

    def _read(self, body: bytes) -> Judged | Again:
        """Read an answer; what is none counts against the judge."""
        self.attempts += 1
        try:
            choice = from_json(body, _Completion).choices[0]
            self.said = choice.message.content or ""
            if not self.said.strip():
                raise ValueError(f"it is empty (finish_reason {choice.finish_reason})")
            schema = self.question.schema
            answer = self.said if schema is None else read_answer(self.said, schema)
        except (DecodeError, IndexError, ValueError) as error:
            why = f"answer {self.attempts} cannot be read: {error}"
            if self.attempts >= UNREADABLE_MAX:
                return self.fail(why, "unreadable answer")
            return Again(Trouble.BUSY, "unreadable answer", why, after_s=0.0)
        return Judged(JudgedKind.ANSWERED, answer, self.said, service=self.line.service)

    def _refuse(self, status: int, headers: dict[str, str], body: bytes) -> Judged | Again:
        found = read_refusal(status, headers, body, self.line.service)
        self.errors += status >= 500
        if isinstance(found, Again):
            return self.fail(found.reason, found.event) if self.errors >= ERRORS_MAX else found
        if found.outcome is OutcomeKind.INFRA_FAILED:
            return self.fail(found.reason, found.event)
        return Judged(JudgedKind.REJECTED, reason=found.reason, service=found.service or self.line.service)
