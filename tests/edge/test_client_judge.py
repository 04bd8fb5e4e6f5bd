"""Asking a judge: what can be read, what cannot, who is to blame; no number and no exception for our outage."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from client_scenes import Asked, in_turn, serving, serving_in_thread, typed

from retinue.client import Judged, JudgedKind, Retinue, SyncRetinue
from retinue.client.judging import ERRORS_MAX, UNREADABLE_MAX

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
Answer = Callable[[Asked], Awaitable[None]]


def say(text: str | None, **choice: Any) -> Answer:
    async def answer(asked: Asked) -> None:
        if asked.path.endswith("/v1/models"):
            await asked.answer(200, {"object": "list", "data": [{"id": "the-model"}]})
            return
        message = {"role": "assistant", "content": text}
        await asked.answer(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop", **choice}]})

    return answer


def refuse(status: int, body: Any = None) -> Answer:
    async def answer(asked: Asked) -> None:
        await asked.answer(status, body or {"error": {"message": "no"}})

    return answer


async def ask(*script: Answer, **more: Any) -> tuple[Judged, list[Asked]]:
    more = {"schema": SCHEMA, "model": "m", "deadline_s": 20.0, **more}
    async with serving(in_turn(*script)) as server, Retinue({"judge": server.url}) as r:
        return await r.judge("judge", "Is it so?", **more), server.asked


async def test_an_answer_of_the_asked_form_is_a_value_and_the_request_says_all_of_it() -> None:
    judged, [asked] = await ask(say('{"ok": true}'), rollout_id="r7", extra={"top_p": 0.5})
    assert (judged.outcome, judged.answer, judged.attempts) == (JudgedKind.ANSWERED, {"ok": True}, 1)
    assert (judged.rollout_id, judged.service) == ("r7", "judge")
    sent = asked.json
    assert sent["messages"] == [{"role": "user", "content": "Is it so?"}]
    assert sent["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (sent["temperature"], sent["seed"], sent["max_tokens"], sent["top_p"]) == (0.0, 0, 512, 0.5)


async def test_without_a_schema_the_answer_is_the_text() -> None:
    judged, [asked] = await ask(say("  Yes.\n"), schema=None)
    assert judged.answer == "  Yes.\n"
    assert "response_format" not in asked.json


async def test_the_model_is_asked_for_once_where_the_caller_names_none() -> None:
    async with serving(say('{"ok": false}')) as server, Retinue({"judge": server.url}) as r:
        for _ in range(2):
            assert (await r.judge("judge", "Is it so?", schema=SCHEMA)).is_answered
    assert [asked.path for asked in server.asked] == ["/v1/models", *["/v1/chat/completions"] * 2]
    assert server.asked[1].json["model"] == "the-model"


async def test_a_judge_that_talks_past_its_schema_is_asked_again_and_not_the_same() -> None:
    judged, asked = await ask(say("Well, yes and no."), say('{"ok": true}'))
    assert (judged.outcome, judged.attempts) == (JudgedKind.ANSWERED, 2)
    assert [one.json["seed"] for one in asked] == [0, 1]
    assert asked[1].json["temperature"] > 0


@pytest.mark.parametrize("text", ["Well, yes and no.", '{"ok": "yes"}', '{"ok": tr', "", None])
async def test_a_judge_that_never_says_it_right_has_failed_and_not_the_policy(text: str | None) -> None:
    judged, asked = await ask(say(text, finish_reason="length"))
    assert (judged.outcome, judged.answer) == (JudgedKind.INFRA_FAILED, None)
    assert judged.event == "unreadable answer"
    assert judged.text == (text or "")
    assert len(asked) == judged.attempts == UNREADABLE_MAX


async def test_an_engine_that_breaks_at_every_attempt_is_given_up_before_the_deadline() -> None:
    judged, asked = await ask(refuse(500), deadline_s=60.0)
    assert judged.outcome is JudgedKind.INFRA_FAILED
    assert len(asked) == ERRORS_MAX


async def test_a_judge_that_is_away_past_the_hold_is_our_outage() -> None:
    judged, _ = await ask(typed("retinue_unavailable"))
    assert (judged.outcome, judged.event) == (JudgedKind.INFRA_FAILED, "no replica ready")


async def test_what_the_judge_refuses_is_the_callers_mistake() -> None:
    judged, asked = await ask(refuse(400, {"error": {"message": "longer than the context"}}))
    assert judged.outcome is JudgedKind.REJECTED
    assert "longer than the context" in judged.reason
    assert len(asked) == 1


async def test_a_deadline_ends_a_call_whose_answer_never_comes() -> None:
    async def hang(asked: Asked) -> None:
        await asked.reader.read()

    judged, _ = await ask(hang, deadline_s=0.2)
    assert (judged.outcome, judged.event) == (JudgedKind.INFRA_FAILED, "deadline passed")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"content": "x"}]}, "message 0"),
        ({"schema": {"format": "x"}}, "'format'"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temprature": 1}, "unknown option 'temprature'"),
        ({"extra": {"x": {1, 2}}}, "must be JSON"),
    ],
)
async def test_wrong_arguments_raise_at_the_call(more: dict[str, Any], what: str) -> None:
    async with Retinue({"judge": "http://127.0.0.1:9"}) as r:
        with pytest.raises((TypeError, ValueError), match=what):
            await r.judge("judge", more.pop("messages", "x"), **more)


def test_programs_without_asyncio_ask_the_same_way() -> None:
    with serving_in_thread(say(json.dumps({"ok": True}))) as server, SyncRetinue({"judge": server.url}) as r:
        assert r.judge("judge", "Is it so?", schema=SCHEMA).answer == {"ok": True}
