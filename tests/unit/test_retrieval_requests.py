"""Every dialect of `POST /retrieve` that callers speak, and what is refused in words."""

import json
from typing import Any

import pytest

from retinue.retrieval.index import Found, Wanted
from retinue.retrieval.records import Method, Passage
from retinue.retrieval.requests import build_piece, build_reply, parse_request
from retinue.retrieval.settings import PASSAGES_MAX, QUERIES_MAX, TOP_K_MAX
from retinue.serving.faults import Fault

ALL = tuple(Method)
FOUND = [Found(Passage("p1", '"T"\ntext'), 0.5)]


def parse(body: Any, methods: tuple[Method, ...] = ALL) -> list[Wanted]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_request(data, 3, methods, methods[-1])


@pytest.mark.parametrize(
    ("body", "texts", "count", "candidates", "with_scores"),
    [
        ({"queries": ["a", "b"], "topk": 3, "return_scores": True}, ["a", "b"], 3, 0, True),  # Search-R1, verl
        ({"queries": ["a"]}, ["a"], 3, 0, False),  # Search-R1 leaves both to the server
        ({"queries": ["q"], "topk": 5, "return_scores": False}, ["q"], 5, 0, False),  # slime
        ({"query": "q", "topk": 2, "return_scores": True}, ["q"], 2, 0, True),  # SkyRL
        ({"queries": ["a"], "topk": None}, ["a"], 3, 0, False),
        ({"queries": "a", "top_k": 7}, ["a"], 7, 0, False),
        ({"queries": ["a"], "topk_retrieval": 9, "topk_rerank": 2, "return_scores": True}, ["a"], 2, 9, True),
        ({"queries": ["a"], "topk_retrieval": 20}, ["a"], 3, 20, False),
        ({"queries": ["a"], "topk_rerank": 5}, ["a"], 5, 10, False),
        ({"queries": ["a"], "topk_retrieval": 2, "topk_rerank": 5}, ["a"], 2, 2, False),
        ({"queries": ["a"], "topk_retrieval": 8, "topk": 4}, ["a"], 4, 8, False),
        ({"queries": [], "topk": 3}, [], 3, 0, False),
        ({"queries": ["a"], "somebody": {"elses": "field"}}, ["a"], 3, 0, False),
    ],
)
def test_what_callers_send_is_understood(
    body: Any, texts: list[str], count: int, candidates: int, with_scores: bool
) -> None:
    assert parse(body) == [Wanted(text, count, candidates, Method.HYBRID, with_scores) for text in texts]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 400, "queries"),
        ({"query": "a", "queries": ["b"]}, 400, "queries"),
        ({"queries": [1]}, 400, "queries"),
        ({"queries": [None]}, 400, "queries"),
        ({"queries": {"a": 1}}, 400, "queries"),
        ({"query": "a", "topk": 0}, 400, "topk of 0"),
        ({"query": "a", "topk": -3}, 400, "topk of -3"),
        ({"query": "a", "topk": TOP_K_MAX + 1}, 400, "1 to 1000"),
        ({"query": "a", "topk": 10**40}, 400, "topk of 1"),
        ({"query": "a", "topk": 2.5}, 400, "topk"),
        ({"query": "a", "topk": "3"}, 400, "topk"),
        ({"query": "a", "topk_retrieval": 0}, 400, "topk_retrieval of 0"),
        ({"query": "a", "topk_rerank": -1}, 400, "topk_rerank of -1"),
        ({"query": "a", "method": "magic"}, 400, "method"),
        ({"queries": ["a"] * (QUERIES_MAX + 1)}, 413, "at most"),
        ({"queries": ["a"] * (PASSAGES_MAX // TOP_K_MAX + 1), "topk": TOP_K_MAX}, 413, "in one answer"),
        (b"", 400, "cannot read the body"),
        (b"[1", 400, "cannot read the body"),
        (b'{"query": "\xff\xfe"}', 400, "cannot read the body"),
        (b"[" * 100_000, 400, "cannot read the body"),
    ],
)
def test_what_has_no_meaning_is_refused_and_the_field_is_named(body: Any, status: int, word: str) -> None:
    with pytest.raises(Fault, match=word) as caught:
        parse(body)
    assert caught.value.status == status


def test_a_method_that_the_index_has_not_is_refused_with_those_it_has() -> None:
    with pytest.raises(Fault, match="dense: this service has bm25"):
        parse({"query": "a", "method": "dense"}, (Method.BM25,))
    assert parse({"query": "a"}, (Method.BM25,))[0].method is Method.BM25


def test_a_lone_surrogate_and_a_nul_are_text() -> None:
    assert parse(b'{"queries": ["a\\ud800b", "\\u0000"]}')[0].text == "a�b"
    assert parse(b'{"queries": ["a\\ud800b", "\\u0000"]}')[1].text == "\0"


def test_scores_wrap_the_documents_and_no_scores_leave_them_bare() -> None:
    document = {"id": "p1", "contents": '"T"\ntext'}
    bare, scored = (Wanted("a", 3, 0, Method.BM25, with_scores) for with_scores in (False, True))
    assert json.loads(build_reply([build_piece(bare, FOUND)])) == {"result": [[document]]}
    assert json.loads(build_reply([build_piece(scored, FOUND), build_piece(scored, [])])) == {
        "result": [[{"document": document, "score": 0.5}], []]
    }
    assert json.loads(build_reply([])) == {"result": []}
