"""One retrieval service as a process of its own, and everybody who calls it; the last test kills it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from retrieval_scenes import TEXTS, Caller, build, make_model

from retinue.client import Retinue, RetrievedKind, SyncRetinue
from support.real_run import wait_for

DOCUMENT = {"id": "p1", "contents": TEXTS[1]}


class Service:
    """The process, where it listens, and what it said."""

    def __init__(self, place: Path, index: Path, *words: str) -> None:
        self.place = place
        self.unix = place / "s"
        argv = [sys.executable, "-P", "-m", "retinue.retrieval", "--index", str(index), "--port", "0"]
        env = os.environ | {"RETINUE_PORT_FILE": str(place / "port"), "RETINUE_NODE_DIR": str(place)}
        self.said = open(place / "said", "w+")  # noqa: SIM115
        self.process = subprocess.Popen([*argv, "--unix", str(self.unix), *words], env=env, stderr=self.said)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{int((self.place / 'port').read_text())}"

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.read_said()
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def read_said(self) -> str:
        return (self.place / "said").read_text()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.said.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("served")
    model = make_model(place / "model", {word for text in TEXTS for word in text.split()})
    build(place, embedder=str(model))
    service = Service(place, place / "index", "--workers", "2")
    try:
        wait_for("the service to be ready", service.is_ready)
        yield service
    finally:
        service.end()


@pytest.fixture
async def caller(service: Service) -> AsyncIterator[Caller]:
    async with aiohttp.ClientSession() as session:
        yield Caller(session, service.url)


def post_plainly(service: Service, body: Any) -> Any:
    """As `requests.post(url, json=...).json()` of the trainers does."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(service.url + "/retrieve", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def test_search_r1_and_verl_read_their_titles_and_texts(service: Service) -> None:
    queries = ["a cat on a mat", "stock prices"]
    answer = post_plainly(service, {"queries": queries, "topk": 3, "return_scores": True})
    assert list(answer) == ["result"]
    assert [found[0]["document"]["contents"].split("\n")[0] for found in answer["result"]] == ["Cats", "Markets"]
    assert all(set(one) == {"document", "score"} for found in answer["result"] for one in found)
    assert answer["result"][0][0]["score"] > answer["result"][0][1]["score"]


def test_slime_reads_bare_documents(service: Service) -> None:
    answer = post_plainly(service, {"queries": ["cat mat"], "topk": 1, "return_scores": False})
    assert answer == {"result": [[DOCUMENT]]}


def test_skyrl_sends_one_query_as_a_text(service: Service) -> None:
    answer = post_plainly(service, {"query": "cat mat", "topk": 1, "return_scores": True})
    assert [one["document"] for one in answer["result"][0]] == [DOCUMENT]


def test_a_caller_that_reranks_gets_as_many_as_it_reranks_to(service: Service) -> None:
    body = {"queries": ["cat", "dogs"], "topk_retrieval": 5, "topk_rerank": 2, "return_scores": True}
    assert [len(found) for found in post_plainly(service, body)["result"]] == [2, 2]


async def test_every_method_answers_the_same_twice_alone_and_in_company(caller: Caller) -> None:
    for method in ("bm25", "dense", "hybrid"):
        alone = await caller.post({"query": "postman runs", "topk": 8, "method": method, "return_scores": True})
        others = [caller.post({"queries": list(TEXTS), "method": method}) for _ in range(4)]
        queries = ["cat", "postman runs", "tide"]
        company = await caller.post({"queries": queries, "topk": 8, "method": method, "return_scores": True})
        assert company[2]["result"][1] == alone[2]["result"][0]
        await asyncio.gather(*others)


@pytest.mark.parametrize(
    ("queries", "count"),
    [([], 0), (["", "\0", "(((", 'title:"x'], 4), (["x" * 10**6], 1), (["\ud800"], 1), ([" ".join(TEXTS) * 200], 1)],
)
async def test_whatever_a_rollout_writes_is_a_query(caller: Caller, queries: list[str], count: int) -> None:
    status, _, body = await caller.post({"queries": queries})
    assert status == 200
    assert len(body["result"]) == count


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"query": "a", "topk": -1}, 400, "retrieval_bad_request"),
        (b"{", 400, "retrieval_bad_request"),
        ({"queries": ["a"] * 10_001}, 413, "retrieval_too_many"),
    ],
)
async def test_what_is_refused_is_refused_in_words_and_the_next_is_answered(
    caller: Caller, body: Any, status: int, kind: str
) -> None:
    found, headers, answer = await caller.post(body)
    assert (found, answer["error"]["type"], answer["error"]["retryable"]) == (status, kind, False)
    assert "X-Retinue-Outcome" not in headers
    assert (await caller.post({"query": "cat"}))[0] == 200


async def test_a_body_that_is_too_long_is_refused_before_it_is_sent(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(service.url.rpartition(":")[2]))
    writer.write(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 16777217\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"}\n"), 30)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"retrieval_too_large" in answer


async def test_people_find_pages_and_numbers(caller: Caller) -> None:
    status, text = await caller.get("/v1/index")
    facts = json.loads(text)
    assert (status, facts["passages"], facts["methods"]) == (200, len(TEXTS), ["bm25", "dense", "hybrid"])
    assert await caller.read_metric("passages") == len(TEXTS)
    assert await caller.read_metric("ready") == 1
    before = await caller.read_metric("queries_total")
    await caller.post({"queries": ["a", "b"]})
    assert await caller.read_metric("queries_total") == before + 2
    assert (await caller.get("/nowhere"))[0] == 404
    assert (await caller.get("/retrieve"))[0] == 405


async def test_the_client_finds_passages_of_one_query_and_of_many(service: Service) -> None:
    async with Retinue({"corpus": f"unix:{service.unix}"}) as r:
        one = await r.retrieve("corpus", "a cat on a mat", 2)
        assert (one.outcome, one.is_found, one.service) == (RetrievedKind.FOUND, True, "corpus")
        assert [passage.id for passage in one.passages] == ["p1", one.passages[1].id]
        assert (one.passages[0].title, one.passages[0].text) == ("Cats", "A cat sleeps on a warm mat.")
        many = await r.retrieve("corpus", [TEXTS[number % 8] for number in range(300)], 1, method="bm25")
        wanted = [f"p{4 if number % 8 == 5 else number % 8}" for number in range(300)]
        assert [found[0].id for found in many.results] == wanted
        odd = await r.retrieve("corpus", ["", "\ud800\0", "x" * 10**6], 1, method="bm25")
        assert (odd.outcome, odd.results) == (RetrievedKind.FOUND, ((), (), ()))
        assert (await r.retrieve("corpus", [])).results == ()


def test_the_client_without_asyncio_does_the_same(service: Service) -> None:
    with SyncRetinue({"corpus": service.url}) as r:
        assert r.retrieve("corpus", "stock prices", top_k=1).passages[0].id == "p3"


def test_told_to_stop_it_exits_0_and_leaves_nothing(tmp_path: Path) -> None:
    build(tmp_path)
    (tmp_path / "node").mkdir()
    service = Service(tmp_path / "node", tmp_path / "index")
    try:
        wait_for("the service to be ready", service.is_ready)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        assert {path.name for path in (tmp_path / "node").iterdir()} == {"port", "said"}
    finally:
        service.end()


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        ("", "there is no index; retinue index build"),
        ("passages.jsonl", "passages.jsonl"),
        ("index.json", "index.json"),
    ],
)
def test_an_index_that_cannot_be_used_is_exit_3_so_nobody_starts_it_again(
    tmp_path: Path, damage: str, word: str
) -> None:
    if damage:
        build(tmp_path)
        os.truncate(tmp_path / "index" / damage, 20)
    service = Service(tmp_path, tmp_path / "index")
    try:
        assert service.process.wait(30) == 3
        assert word in service.read_said()
        assert not service.unix.exists()
    finally:
        service.end()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--workers", "0"], "--workers is 0"),
        (["--top-k", "100000"], "--top-k is 100000"),
        (["--queue-memory", "12"], "--queue-memory"),
        (["--reranker", "nothing"], "not MODULE:FUNCTION"),
        (["--plugin-path", "/nowhere"], "/nowhere"),
        (["--method", "magic"], "magic"),
    ],
)
def test_a_command_line_that_has_no_meaning_is_exit_2(tmp_path: Path, words: list[str], complaint: str) -> None:
    service = Service(tmp_path, tmp_path, *words)
    try:
        assert service.process.wait(30) == 2
        assert complaint in service.read_said()
    finally:
        service.end()


async def test_a_service_that_is_killed_is_an_outage_and_no_search_that_found_nothing(service: Service) -> None:
    """Last: it is gone afterwards."""
    async with Retinue({"corpus": service.url}) as r:
        assert (await r.retrieve("corpus", "cat", 1)).is_found
        asking = [asyncio.create_task(r.retrieve("corpus", list(TEXTS) * 40, deadline_s=2.0)) for _ in range(3)]
        await asyncio.sleep(0)
        service.process.kill()
        for retrieved in [*await asyncio.gather(*asking), await r.retrieve("corpus", "cat", deadline_s=0.3)]:
            if retrieved.is_found:
                assert all(found for found in retrieved.results)
                continue
            assert retrieved.outcome is RetrievedKind.INFRA_FAILED
            assert (retrieved.results, retrieved.service) == ((), "corpus")
            assert retrieved.node
            assert retrieved.event
            with pytest.raises(LookupError, match="infra_failed"):
                _ = retrieved.passages
        assert not retrieved.is_found
