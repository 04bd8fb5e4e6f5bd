"""`retrieve` against a server that does what a test says: every way it can end, none of which is an empty result."""

import socket
from typing import Any

import pytest
from client_scenes import Asked, Script, Server, busy, hang, in_turn, serving, typed

from retinue.client import Passage, Retinue, Retrieved, RetrievedKind
from retinue.client.retrieving import PART, QUERY_CHARS_MAX
from retinue.errors import UsageError


async def answer(asked: Asked) -> None:
    """One passage per query, which says the query."""
    found = [[{"document": {"id": "p", "contents": f'"T"\\n{text}'}, "score": 0.5}] for text in asked.json["queries"]]
    await asked.answer(200, {"result": found})


def reply(status: int, value: Any, **headers: str) -> Script:
    async def script(asked: Asked) -> None:
        await asked.answer(status, value, **headers)

    return script


async def cut(asked: Asked) -> None:
    asked.cut()


async def ask(server: Server, queries: Any = "cats", **more: Any) -> Retrieved:
    async with Retinue({"corpus": server.url}) as r:
        return await r.retrieve("corpus", queries, **{"deadline_s": 20.0, **more})


async def test_the_request_is_the_one_that_everybody_speaks() -> None:
    async with serving(answer) as server, Retinue({"corpus": server.url + "/corpus"}, token="secret") as r:
        retrieved = await r.retrieve("corpus", ["cats", "dogs"], 2, method="bm25")
    [asked] = server.asked
    assert (asked.method, asked.path) == ("POST", "/corpus/retrieve")
    assert asked.json == {"queries": ["cats", "dogs"], "topk": 2, "return_scores": True, "method": "bm25"}
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["x-retinue-caller"].startswith(socket.gethostname() + ":")
    assert retrieved.results == tuple((Passage("p", f'"T"\\n{text}', 0.5),) for text in ("cats", "dogs"))
    assert (retrieved.passages[0].contents, retrieved.reason, retrieved.event) == ('"T"\\ncats', "", "")


async def test_many_queries_go_in_parts_and_come_back_in_their_order() -> None:
    queries = [str(number) for number in range(3 * PART + 5)]
    async with serving(answer) as server:
        retrieved = await ask(server, queries)
    assert [found[0].contents.rpartition("n")[2] for found in retrieved.results] == queries
    assert sorted(len(asked.json["queries"]) for asked in server.asked) == [5, PART, PART, PART]


async def test_of_an_endless_query_only_what_is_read_is_sent() -> None:
    async with serving(answer) as server:
        await ask(server, "x" * 10**6)
    assert server.asked[0].json["queries"] == ["x" * QUERY_CHARS_MAX]


@pytest.mark.parametrize(
    "trouble",
    [
        busy("0"),
        cut,
        reply(500, {"error": "x"}),
        reply(503, {"error": {"type": "retrieval_loading"}}, Retry_After="0"),
        reply(200, {"result": []}),
        reply(200, {"result": [[{"id": "bare"}]]}),
        reply(200, {"error": "what"}),
    ],
)
async def test_what_may_pass_is_asked_again(trouble: Script) -> None:
    async with serving(in_turn(trouble, answer)) as server:
        assert (await ask(server)).is_found
    assert len(server.asked) == 2


@pytest.mark.parametrize("kind", ["retrieval_failed", "retrieval_unusable", "retinue_unavailable"])
async def test_a_service_or_gateway_that_says_it_failed_is_believed_at_once(kind: str) -> None:
    async with serving(typed(kind)) as server:
        retrieved = await ask(server)
    assert (retrieved.outcome, retrieved.results) == (RetrievedKind.INFRA_FAILED, ())
    assert retrieved.event == ("no replica ready" if kind == "retinue_unavailable" else kind)
    assert retrieved.node == socket.gethostname()
    assert len(server.asked) == 1


@pytest.mark.parametrize("script", [hang, busy("3600"), reply(200, {"result": "no list"})])
async def test_no_answer_until_the_deadline_is_an_outage(script: Script) -> None:
    async with serving(script) as server:
        retrieved = await ask(server, deadline_s=0.3)
    assert (retrieved.outcome, retrieved.service) == (RetrievedKind.INFRA_FAILED, "corpus")
    assert "no answer after" in retrieved.reason or "given up after" in retrieved.reason
    with pytest.raises(LookupError, match="infra_failed"):
        _ = retrieved.passages


async def test_one_part_that_fails_fails_them_all() -> None:
    """A part of an answer would pass for a whole one."""

    async def script(asked: Asked) -> None:
        await (answer if "0" in asked.json["queries"] else typed("retrieval_failed"))(asked)

    async with serving(script) as server:
        retrieved = await ask(server, [str(number) for number in range(2 * PART)])
    assert (retrieved.outcome, retrieved.results) == (RetrievedKind.INFRA_FAILED, ())


@pytest.mark.parametrize("status", [400, 404, 413])
async def test_a_refusal_is_the_callers_and_no_outage(status: int) -> None:
    async with serving(reply(status, {"error": {"type": "x", "message": "this service has bm25"}})) as server:
        retrieved = await ask(server, method="dense")
    assert (retrieved.outcome, retrieved.results, retrieved.event) == (RetrievedKind.REJECTED, (), "")
    assert "this service has bm25" in retrieved.reason
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("queries", "more", "error"),
    [
        (["a", 1], {}, TypeError),
        ([b"a"], {}, TypeError),
        ("a", {"top_k": 0}, ValueError),
        ("a", {"top_k": 1001}, ValueError),
        ("a", {"top_k": True}, TypeError),
        ("a", {"top_k": 2.0}, TypeError),
        ("a", {"method": "magic"}, ValueError),
        ("a", {"deadline_s": -1}, ValueError),
    ],
)
async def test_a_wrong_argument_raises_before_anything_is_sent(queries: Any, more: Any, error: type[Exception]) -> None:
    async with serving(answer) as server:
        with pytest.raises(error):
            await ask(server, queries, **more)
    assert server.asked == []


async def test_a_service_that_is_not_is_named_with_those_that_are() -> None:
    async with Retinue({"corpus": "http://127.0.0.1:1"}) as r:
        with pytest.raises(UsageError, match="'wiki': there are corpus"):
            await r.retrieve("wiki", "cats")
