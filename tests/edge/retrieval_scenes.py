"""A corpus, embedders and whole services for the retrieval tests; the ONNX model is made on the spot."""

import json
import math
import struct
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import tokenizers
from aiohttp import web

from retinue.retrieval.build import Built, Order, build_index
from retinue.retrieval.host import Host, open_host
from retinue.retrieval.index import Index, Wanted, open_index
from retinue.retrieval.records import Method
from retinue.retrieval.server import Desk
from retinue.retrieval.settings import Settings

TEXTS = (
    "The harbour\nTide tables of the harbour are printed in spring.",
    "Cats\nA cat sleeps on a warm mat.",
    "Dogs\nDogs chase the postman, and the postman runs.",
    "Markets\nStock prices fell sharply in autumn.",
    "Twins\nTwo passages that say the same.",
    "Twins\nTwo passages that say the same.",
    "Operators\nThe words AND, OR and NOT are words; title:x is one too.",
    "北京大学\nA passage with a title in Chinese.",
)
DIMENSION = 64
PLUGIN = '''
import threading, zlib

let_go = threading.Event()
asked = []

def embed(texts, kind):
    """Words into buckets: near when they share words."""
    asked.append(len(texts))
    rows = []
    for text in texts:
        row = [0.001] * 64
        for word in text.lower().split():
            row[zlib.crc32(word.strip(".,").encode()) % 64] += 1.0
        rows.append(row)
    return rows

def embed_otherwise(texts, kind):
    return [[float(index == len(text) % 64) for index in range(64)] for text in texts]

def embed_raggedly(texts, kind):
    return [[1.0] * (1 + len(text)) for text in texts]

def embed_nothing(texts, kind):
    return [[0.0] * 64 for _ in texts]

def embed_and_die(texts, kind):
    """Gives up in the middle of a corpus; `limit` says where."""
    if sum(asked) >= limit:
        raise MemoryError("no more")
    return embed(texts, kind)

limit = 10**9

def reverse(query, passages):
    """The worst first."""
    return list(range(len(passages)))

def wait(query, passages):
    """Hold the thread until the test lets go."""
    assert let_go.wait(60)
    return [0.0] * len(passages)

def fail(query, passages):
    if query == "fail":
        raise RuntimeError("the reranker is out of memory")
    return [0.0] * len(passages)
'''


def nothing(_what: str, _done: int, _total: int) -> None:
    """No progress is shown."""


def write_corpus(path: Path, texts: Iterable[str] = TEXTS) -> Path:
    lines = (json.dumps({"id": f"p{number}", "contents": text}) for number, text in enumerate(texts))
    path.write_text("".join(line + "\n" for line in lines))
    return path


def write_plugin(directory: Path, name: str) -> str:
    """Write the functions as a module of that name, found by imports of this process; each test its own."""
    (directory / f"{name}.py").write_text(PLUGIN)
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    return name


def build(directory: Path, texts: Iterable[str] = TEXTS, **order: Any) -> Built:
    """Build `directory/index` of these texts."""
    corpus = write_corpus(directory / "corpus.jsonl", texts)
    return build_index(Order(corpus, directory / "index", **order), nothing)


def open_built(directory: Path, **settings: Any) -> Index:
    view = Path(tempfile.mkdtemp(dir=directory, prefix="view-"))
    return open_index(Settings(index=str(directory / "index"), **settings), view)


def search(index: Index, text: str, count: int = 3, method: Method = Method.BM25, candidates: int = 0) -> list[str]:
    """Ids of what is found."""
    found = index.search(Wanted(text, count, candidates, method, with_scores=True))
    return [one.document.id for one in found]


@asynccontextmanager
async def serving_index(directory: Path, **settings: Any) -> AsyncIterator[tuple[Host, "Caller"]]:
    """A host and its server in this process, ready, and somebody who asks."""
    view = Path(tempfile.mkdtemp(dir=directory, prefix="view-"))
    whole = Settings(**{"index": str(directory / "index"), **settings})
    async with open_host(whole, view) as host:
        runner = web.ServerRunner(Desk(host).build_server(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{runner.addresses[0][1]}"
                yield host, Caller(session, url)
        finally:
            await runner.cleanup()


class Caller:
    """Asks a service over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, body: Any, headers: Mapping[str, str] | None = None) -> tuple[int, Mapping[str, str], Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/retrieve", data=data, headers=headers) as response:
            return response.status, response.headers, json.loads(await response.read())

    async def get(self, page: str) -> tuple[int, str]:
        async with self.session.get(self.url + page) as response:
            return response.status, await response.text()

    async def read_metric(self, name: str) -> float:
        _, text = await self.get("/metrics")
        [line] = [line for line in text.splitlines() if line.startswith(f"retinue_retrieval_{name} ")]
        return float(line.split()[1])


# --- a sentence model of a few kilobytes ------------------------------------------------


def make_model(directory: Path, words: Iterable[str], **settings: Any) -> Path:
    """A real ONNX model and tokenizer: each word has a vector, a text gets their mean."""
    directory.mkdir()
    vocabulary = {"[UNK]": 0, "[CLS]": 1} | {word: at for at, word in enumerate(dict.fromkeys(words), 2)}
    rows = [[math.sin(1.0 + at * (7 + column)) for column in range(DIMENSION)] for at in range(len(vocabulary))]
    (directory / "model.onnx").write_bytes(_build_onnx(rows))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    template = tokenizers.processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    tokenizer.post_processor = template
    tokenizer.save(str(directory / "tokenizer.json"))
    if settings:
        (directory / "embedder.json").write_text(json.dumps(settings))
    return directory


def _build_onnx(rows: list[list[float]]) -> bytes:
    """`last_hidden_state = Gather(rows, input_ids)`. Source: onnx.proto3 for the numbers of the fields."""
    raw = b"".join(struct.pack(f"<{DIMENSION}f", *row) for row in rows)
    table = _number(1, len(rows)) + _number(1, DIMENSION) + _number(2, 1) + _part(8, b"rows") + _part(9, raw)
    node = _part(1, b"rows") + _part(1, b"input_ids") + _part(2, b"last_hidden_state") + _part(4, b"Gather")
    graph = _part(1, node) + _part(2, b"tiny") + _part(5, table)
    graph += _part(11, _describe(b"input_ids", 7, [b"batch", b"words"]))
    graph += _part(12, _describe(b"last_hidden_state", 1, [b"batch", b"words", b"numbers"]))
    return _number(1, 8) + _part(7, graph) + _part(8, _number(2, 13))


def _describe(name: bytes, kind: int, sides: list[bytes]) -> bytes:
    shape = b"".join(_part(1, _part(2, side)) for side in sides)
    return _part(1, name) + _part(2, _part(1, _number(1, kind) + _part(2, shape)))


def _part(field: int, data: bytes) -> bytes:
    return _encode(field << 3 | 2) + _encode(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _encode(field << 3) + _encode(value)


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
