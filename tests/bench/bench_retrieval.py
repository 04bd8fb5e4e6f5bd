"""What retrieval costs through HTTP beside the bare library: 100,000 passages, BM25 and vectors.

Run: `PYTHONPATH=controller python tests/bench/bench_retrieval.py [PASSAGES]`. One service process, one caller on its
unix socket, then sixteen. Words are drawn from a Zipf vocabulary, vectors around a few hundred centres; rounds of
library and service take turns, so that a busy machine slows both. Not a test: asserts only that answers are right.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retinue.retrieval.build import Order, build_index
from retinue.retrieval.index import Index, Wanted, open_index
from retinue.retrieval.records import Method
from retinue.retrieval.settings import Settings

PASSAGES = 100_000
WORDS = 30_000
QUERIES = 300
ROUNDS = 3
IN_FLIGHT = 16
DIMENSION = 384
EMBEDDER = '''
import numpy, zlib

CENTRES = numpy.random.default_rng(1).standard_normal((400, 384))

def embed(texts, kind):
    """A centre by the first word, and some noise by the whole text."""
    rows = []
    for text in texts:
        first = text.split(None, 1)[0]
        noise = numpy.random.default_rng(zlib.crc32(text.encode())).standard_normal(384)
        rows.append(CENTRES[zlib.crc32(first.encode()) % 400] + 0.5 * noise)
    return rows
'''


class Caller:
    """One keep-alive connection; one request at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: Any) -> Any:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(self._path, limit=2**24)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        writer.write(b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:"))
        answer = json.loads(await reader.readexactly(length))
        assert head.split()[1] == "200", answer
        return answer["result"]

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def write_corpus(path: Path, count: int) -> list[str]:
    """Write the corpus; gives queries of eight words of one passage each."""
    rng = random.Random(1)
    words = [f"w{number}" for number in range(WORDS)]
    weights = list(itertools.accumulate(1 / (number + 1) for number in range(WORDS)))
    queries = []
    with open(path, "w") as stream:
        for number in range(count):
            text = rng.choices(words, cum_weights=weights, k=rng.randint(60, 140))
            stream.write(json.dumps({"id": str(number), "contents": " ".join(text)}) + "\n")
            if number % (count // QUERIES) == 0:
                queries.append(" ".join(rng.sample(text, 8)))
    return queries[:QUERIES]


def measure_bare(index: Index, queries: list[str], method: Method) -> list[float]:
    """The library in this thread: search, and the passages read."""
    took = []
    for query in queries:
        began = time.perf_counter()
        index.search(Wanted(query, 3, 0, method, with_scores=True))
        took.append(time.perf_counter() - began)
    return took


async def measure_service(caller: Caller, queries: list[str], method: Method) -> list[float]:
    took = []
    for query in queries:
        began = time.perf_counter()
        await caller.ask({"queries": [query], "topk": 3, "return_scores": True, "method": method.value})
        took.append(time.perf_counter() - began)
    return took


async def measure_rate(path: Path, queries: list[str], method: Method) -> float:
    left = list(queries)

    async def go() -> None:
        caller = Caller(path)
        while left:
            await caller.ask({"queries": [left.pop()], "topk": 3, "method": method.value})
        caller.close()

    began = time.perf_counter()
    await asyncio.gather(*(go() for _ in range(IN_FLIGHT)))
    return len(queries) / (time.perf_counter() - began)


def say(what: str, took_s: list[float]) -> float:
    ordered = sorted(took_s)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"  {what:24} p50 {p50 * 1e3:6.2f} ms   p99 {p99 * 1e3:6.2f} ms", flush=True)
    return p50


async def compare(index: Index, path: Path, queries: list[str], method: Method) -> None:
    caller = Caller(path)
    await caller.ask({"queries": queries[:20], "method": method.value})
    bare: list[float] = []
    served: list[float] = []
    for _ in range(ROUNDS):
        bare += measure_bare(index, queries, method)
        served += await measure_service(caller, queries, method)
    print(method.value)
    ratio = say("service, one caller", served) / say("library, same process", bare)
    began = time.perf_counter()
    await caller.ask({"queries": queries, "topk": 3, "method": method.value})
    batch = len(queries) / (time.perf_counter() - began)
    rate = await measure_rate(path, queries, method)
    print(
        f"  ratio {ratio:.2f}   {IN_FLIGHT} callers {rate:.0f}/s   one batch of {len(queries)}: {batch:.0f}/s",
        flush=True,
    )
    caller.close()


def time_it(what: str, work: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = work()
    print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)
    return result


def read_rss_mib(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PASSAGES
    with tempfile.TemporaryDirectory(prefix="retinue-bench-") as folder:
        place = Path(folder)
        sys.path.insert(0, folder)
        (place / "bench_embedder.py").write_text(EMBEDDER)
        queries = write_corpus(place / "corpus.jsonl", count)
        order = Order(place / "corpus.jsonl", place / "index", embedder="bench_embedder:embed")
        time_it(
            f"build of {count} passages, with {DIMENSION} numbers each", lambda: build_index(order, lambda *_: None)
        )
        size = sum(path.stat().st_size for path in order.out.rglob("*") if path.is_file())
        print(f"on disk: {size / 2**20:.0f} MiB")
        (place / "view").mkdir()
        index = open_index(Settings(str(order.out)), place / "view")
        argv = [sys.executable, "-m", "retinue.retrieval", "--unix", str(place / "s"), "--index", str(order.out)]
        process = subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        try:
            asyncio.run(run(index, place / "s", queries))
            print(f"memory of the service's own: {read_rss_mib(process.pid):.0f} MiB")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


async def run(index: Index, path: Path, queries: list[str]) -> None:
    while True:
        try:
            caller = Caller(path)
            await caller.ask({"query": "w1"})
            break
        except (OSError, AssertionError):
            await asyncio.sleep(0.1)
    caller.close()
    for method in Method:
        await compare(index, path, queries, method)


if __name__ == "__main__":
    main()
