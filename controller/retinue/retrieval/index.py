"""An open index, and one search in it.

Opened whole or not at all: sizes, counts, the embedder and one query per method are tried first. Any thread may search.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from retinue.errors import PermanentError
from retinue.retrieval.dense import Dense
from retinue.retrieval.embedding import QUERY, Embedder, check_mark, embed_one, import_function, load_embedder
from retinue.retrieval.facts import AGAIN, BUILD, check_sizes, read_facts
from retinue.retrieval.foreign import Foreign
from retinue.retrieval.fusion import fuse_hits, sort_hits
from retinue.retrieval.lexical import Lexical
from retinue.retrieval.passages import Damaged, Passages
from retinue.retrieval.records import LEXICAL, Hit, IndexFacts, Method, Passage
from retinue.retrieval.settings import QUERY_CHARS_MAX, Settings
from retinue.terms.record import Record

FUSED_MIN = 50
"""Hits of each method that are fused, however few are wanted: a rank says little among three."""
RERANKED_MIN = 20
"""Candidates a reranker gets where the request does not say."""
REHEARSED_CHARS = 200


class Found(Record, frozen=True):
    """A passage that was found."""

    document: Passage
    score: float


class Wanted(Record, frozen=True):
    """One query, checked."""

    text: str
    count: int
    candidates: int
    """Passages that the first stage gives to the second; 0: as many as are good."""
    method: Method
    with_scores: bool


Rerank = Callable[[str, list[str]], Any]


class Index:
    """What is searched."""

    def __init__(
        self,
        facts: IndexFacts,
        passages: Passages,
        lexical: Lexical,
        dense: tuple[Dense, Embedder] | None,
        rerank: Rerank | None,
    ) -> None:
        self.facts = facts
        self._passages = passages
        self._lexical = lexical
        self._dense = dense
        self._rerank = rerank

    @property
    def methods(self) -> tuple[Method, ...]:
        """What can be asked for; the last is the best."""
        return (Method.BM25,) if self._dense is None else (Method.BM25, Method.DENSE, Method.HYBRID)

    def prepare_thread(self) -> None:
        """Make a worker thread ready."""
        if self._dense is not None:
            self._dense[0].prepare_thread()

    def search(self, wanted: Wanted) -> list[Found]:
        """Find the passages of one query, best first; none when nothing in it can be searched for.

        Errors: Damaged: nothing of this index is to be trusted; PermanentError: embedder or reranker failed; OSError.
        """
        text = wanted.text[:QUERY_CHARS_MAX]
        if not text.strip("\0 \t\r\n"):
            return []
        if self._rerank is None:
            return [self._read(hit) for hit in self._find(text, wanted)[: wanted.count]]
        found = [self._read(hit) for hit in self._find(text, wanted)]
        return self._order_again(text, found)[: wanted.count]

    def rehearse(self) -> None:
        """Search once by every method, as a caller would. Errors: as `search`."""
        text = self._passages.read(0).contents[:REHEARSED_CHARS]
        for method in self.methods:
            found = self.search(Wanted(text, 1, 0, method, with_scores=True))
            if not found and method is not Method.BM25:
                raise Damaged(f"cannot use the index: {method.value} does not find its own first passage; {AGAIN}")

    def close(self) -> None:
        """Close the files."""
        self._passages.close()

    def _find(self, text: str, wanted: Wanted) -> list[Hit]:
        least = RERANKED_MIN if self._rerank is not None else 0
        count = max(wanted.count, wanted.candidates or least)
        if wanted.method is Method.BM25 or self._dense is None:
            return self._lexical.search(text, count)
        dense, embedder = self._dense
        if wanted.method is Method.DENSE:
            return dense.search(embed_one(embedder, text, QUERY), count)
        depth = max(count, FUSED_MIN)
        lists = [self._lexical.search(text, depth), dense.search(embed_one(embedder, text, QUERY), depth)]
        return fuse_hits(lists, count)

    def _read(self, hit: Hit) -> Found:
        if not 0 <= hit.place < self.facts.passages:
            raise Damaged(f"cannot read passage {hit.place}: there are {self.facts.passages}")
        return Found(self._passages.read(hit.place), hit.score)

    def _order_again(self, text: str, found: list[Found]) -> list[Found]:
        assert self._rerank is not None
        if not found:
            return []
        with Foreign("cannot rerank"):
            scores = [float(score) for score in self._rerank(text, [one.document.contents for one in found])]
        if len(scores) != len(found) or not all(map(math.isfinite, scores)):
            raise PermanentError(f"cannot rerank: {len(scores)} scores for {len(found)} passages, or one is no number")
        order = sort_hits([Hit(at, score) for at, score in enumerate(scores)])
        return [Found(found[hit.place].document, hit.score) for hit in order]


def open_index(settings: Settings, view: Path) -> Index:
    """Open it, and search once.

    Shape:  `view` is an empty directory on the node's own disk.
    Errors: Damaged, PermanentError, UsageError say what is wrong and what to do; OSError: perhaps later.
    """
    directory = Path(settings.index)
    try:
        facts = read_facts(directory)
    except FileNotFoundError:
        raise PermanentError(f"cannot use {directory}: there is no index; {BUILD}") from None
    check_sizes(directory, facts)
    lexical = Lexical(directory / LEXICAL, view, facts.recipe.analyzer)
    dense = _open_dense(settings, directory, facts)
    _check_counts(directory, facts, [lexical.count, *([dense[0].count] if dense else [])])
    rerank = import_function(settings.reranker) if settings.reranker else None
    index = Index(facts, Passages(directory), lexical, dense, rerank)
    if settings.method is not None and settings.method not in index.methods:
        raise PermanentError(f"cannot use {directory}: it has no vectors; build it with --dense, or ask for bm25")
    index.rehearse()
    return index


def _open_dense(settings: Settings, directory: Path, facts: IndexFacts) -> tuple[Dense, Embedder] | None:
    """Open the vectors where anybody may ask for them: a model costs memory."""
    if facts.dense is None or settings.method is Method.BM25:
        return None
    embedder = load_embedder(settings.embedder or facts.dense.embedder, settings.workers)
    check_mark(embedder, facts.dense.mark)
    return Dense(directory, facts.dense.dimension, facts.dense.probes), embedder


def _check_counts(directory: Path, facts: IndexFacts, counts: Sequence[int]) -> None:
    if any(count != facts.passages for count in counts):
        raise Damaged(f"cannot use {directory}: it has {min(counts)} passages, not {facts.passages}; {AGAIN}")
