"""`retrieve`: queries in, passages out; an outage is an outcome, and never looks like a search that found nothing."""

import asyncio
import json
from collections.abc import Sequence

from retinue.client.answer import Broken
from retinue.client.asking import Line, translate_trouble
from retinue.client.http import Unreached
from retinue.client.patience import Again
from retinue.client.persevering import GivenUp, persevere
from retinue.client.reply import read_refusal
from retinue.client.retrieval_records import Passage, Retrieved, RetrievedKind
from retinue.terms.outcome import OutcomeKind
from retinue.terms.record import DecodeError, Record, from_json, replace

TOP_K_MAX = 1000
QUERY_CHARS_MAX = 8192
"""What the service reads of a query; the rest is not sent."""
PART = 64
"""Queries of one request: a batch is spread over the replicas."""
PARTS_AT_ONCE = 8
ANSWER_BYTES_MAX = 256 * 1024 * 1024
SEARCH_S = 60.0
"""For the search itself, where the caller does not say how long the call may take."""
METHODS = ("bm25", "dense", "hybrid")

Results = tuple[tuple[Passage, ...], ...]


class _Document(Record, frozen=True):
    id: str
    contents: str


class _Found(Record, frozen=True):
    document: _Document
    score: float


class _Reply(Record, frozen=True):
    result: list[list[_Found]]


def check_queries(queries: str | Sequence[str], top_k: int | None, method: str | None) -> list[str]:
    """Check a call's arguments.

    Errors: TypeError, ValueError: the caller's program is wrong.
    """
    texts = [queries] if isinstance(queries, str) else list(queries)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"query {index} is a {type(text).__name__}, not a str")
    if top_k is not None:
        if isinstance(top_k, bool) or not isinstance(top_k, int):
            raise TypeError(f"top_k is a {type(top_k).__name__}, not an int")
        if not 1 <= top_k <= TOP_K_MAX:
            raise ValueError(f"top_k is {top_k}; it is 1 to {TOP_K_MAX}")
    if method is not None and method not in METHODS:
        raise ValueError(f"method is {method!r}; there are {', '.join(METHODS)}")
    return texts


async def retrieve(
    line: Line, queries: list[str], top_k: int | None, method: str | None, deadline_s: float | None
) -> Retrieved:
    """Search for all queries, or for none: a part of an answer would pass for a whole one."""
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    turns = asyncio.Semaphore(PARTS_AT_ONCE)
    end_s = started_s + (line.hold_s + SEARCH_S if deadline_s is None else deadline_s)

    async def ask(first: int) -> Results | Retrieved:
        async with turns:
            part = queries[first : first + PART]
            body = build_body(part, top_k, method)
            return await _ask(line, body, len(part), max(0.0, end_s - loop.time()))

    parts = await asyncio.gather(*(ask(first) for first in range(0, len(queries), PART)))
    wall_s = loop.time() - started_s
    for part in parts:
        if isinstance(part, Retrieved):
            return replace(part, wall_s=wall_s)
    results = tuple(found for part in parts if not isinstance(part, Retrieved) for found in part)
    return Retrieved(RetrievedKind.FOUND, results, wall_s=wall_s, service=line.service)


def build_body(queries: Sequence[str], top_k: int | None, method: str | None) -> bytes:
    """Build the body of `POST /retrieve`; a lone surrogate, which has no UTF-8, goes as a JSON escape."""
    fields = {"queries": [text[:QUERY_CHARS_MAX] for text in queries], "return_scores": True}
    more = {name: value for name, value in (("topk", top_k), ("method", method)) if value is not None}
    return json.dumps(fields | more).encode()


async def _ask(line: Line, body: bytes, count: int, deadline_s: float) -> Results | Retrieved:
    reply: Results | Retrieved | GivenUp
    reply = await persevere(lambda: _ask_once(line, body, count), deadline_s, line.chance)
    return _build_failure(line, reply) if isinstance(reply, GivenUp) else reply


async def _ask_once(line: Line, body: bytes, count: int) -> Results | Retrieved | Again:
    try:
        async with line.pool.ask(line.target, "POST", "/retrieve", line.headers, body) as answer:
            text = await answer.read_whole(ANSWER_BYTES_MAX)
        if answer.status == 200:
            return _parse_results(text, count)
    except (Unreached, Broken) as error:
        return translate_trouble(error)
    refusal = read_refusal(answer.status, answer.headers, text, line.service)
    if isinstance(refusal, Again):
        return refusal
    is_ours = refusal.outcome is OutcomeKind.INFRA_FAILED
    return Retrieved(
        RetrievedKind.INFRA_FAILED if is_ours else RetrievedKind.REJECTED,
        reason=refusal.reason,
        node=line.node if is_ours else "",
        service=refusal.service or line.service,
        event=refusal.event,
    )


def _parse_results(body: bytes, count: int) -> Results:
    """Parse an answer. Errors: Broken when it is none, or not one result per query."""
    try:
        found = from_json(body, _Reply).result
    except DecodeError as error:
        raise Broken(f"unreadable answer: {error}") from None
    if len(found) != count:
        raise Broken(f"unreadable answer: {len(found)} results for {count} queries")
    return tuple(
        tuple(Passage(one.document.id, one.document.contents, one.score) for one in passages) for passages in found
    )


def _build_failure(line: Line, given_up: GivenUp) -> Retrieved:
    last = given_up.last
    more = f"; last: {last.reason or last.event}" if last is not None else ""
    what = "no answer" if given_up.what == "no outcome" else given_up.what
    return Retrieved(
        RetrievedKind.INFRA_FAILED,
        reason=f"cannot retrieve at {line.service} ({line.target.url}): {what} after {given_up.waited_s:.1f} s{more}",
        node=line.node,
        service=line.service,
        event=last.event if last is not None else "deadline passed",
    )
