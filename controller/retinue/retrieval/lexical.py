"""BM25 over the words of passages: the one door to tantivy.

A query is text and nothing else: its words are looked up one by one, and no character of it is an operator. Tantivy's
query parser is never called. The index is mapped from its files, so all services of a node share the memory.
"""

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from retinue.errors import PermanentError, TransientError
from retinue.retrieval.foreign import Foreign
from retinue.retrieval.fusion import find_complete
from retinue.retrieval.passages import Damaged
from retinue.retrieval.records import Analyzer, Hit, Passage, Progress

HEAP_BYTES = 256 * 2**20
WORD_BYTES_MAX = 40
"""Tantivy's own; longer ones are no words."""
WORDS_MAX = 32
"""Of a longer query the rarest count."""
WORDS_SEEN = 512
"""Words of a query that are looked at."""
EVERY = 1000
TEXT, PLACE = "contents", "place"
_NAMES = {Analyzer.ENGLISH: "en_stem", Analyzer.PLAIN: "default"}


def import_tantivy() -> Any:
    """Import the library. Errors: PermanentError with what to install."""
    try:
        return importlib.import_module("tantivy")
    except ImportError as error:
        raise PermanentError(f"cannot use BM25: {error}; pip install 'retinue[retrieval]'") from None


def build_lexical(
    directory: Path, passages: Iterable[Passage], total: int, analyzer: Analyzer, progress: Progress
) -> None:
    """Write the index of all passages.

    Errors: TransientError when the file system fails.
    """
    tantivy = import_tantivy()
    directory.mkdir()
    with Foreign(f"cannot write {directory}; where flock is refused, build on another file system", TransientError):
        index = tantivy.Index(_build_schema(tantivy, analyzer), path=str(directory))
        # One thread: passages stay in order, and a build is not faster than its disk for long.
        writer = index.writer(heap_size=HEAP_BYTES, num_threads=1)
        for place, passage in enumerate(passages):
            document = tantivy.Document()
            document.add_text(TEXT, passage.contents)
            document.add_unsigned(PLACE, place)
            writer.add_document(document)
            if place % EVERY == 0:
                progress("indexing words", place, total)
        writer.commit()
        writer.wait_merging_threads()
    progress("indexing words", total, total)


class Lexical:
    """An open BM25 index; any thread may search."""

    def __init__(self, directory: Path, view: Path, analyzer: Analyzer) -> None:
        """Open it, through a directory of our own: tantivy wants to make a lock file beside what it opens.

        Shape:  `view` is an empty directory on the node's own disk.
        Errors: Damaged; OSError as the file system says.
        """
        self._tantivy = import_tantivy()
        for name in os.listdir(directory):
            if not name.endswith(".lock"):
                (view / name).symlink_to((directory / name).absolute())
        with Foreign(f"cannot open {directory}", Damaged):
            index = self._tantivy.Index.open(str(view))
            index.config_reader(reload_policy="manual")
            self._searcher = index.searcher()
        self._schema = index.schema
        self._words = _build_analyzer(self._tantivy, analyzer)

    @property
    def count(self) -> int:
        """How many passages it has."""
        return int(self._searcher.num_docs)

    def search(self, text: str, count: int) -> list[Hit]:
        """Find the best passages; none for a text without a word that occurs."""
        words = self._choose(list(dict.fromkeys(self._words.analyze(text))))
        if not words:
            return []
        tantivy = self._tantivy
        with Foreign("cannot search the words", Damaged):
            parts = [tantivy.Query.term_query(self._schema, TEXT, word, "freq") for word in words]
            query = tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts])
            return find_complete(lambda asked: self._find(query, asked), count)

    def _choose(self, words: list[str]) -> list[str]:
        """Choose the words that count: all, or the rarest in the order of the query."""
        if len(words) <= WORDS_MAX:
            return words
        counts = {word: self._searcher.doc_freq(TEXT, word) for word in words[:WORDS_SEEN]}
        known = sorted((count, at, word) for at, (word, count) in enumerate(counts.items()) if count)
        return [word for _, word in sorted((at, word) for _, at, word in known[:WORDS_MAX])]

    def _find(self, query: Any, asked: int) -> list[Hit]:
        hits = self._searcher.search(query, limit=asked, count=False).hits
        places = self._searcher.fast_field_values(PLACE, [address for _, address in hits])
        return [Hit(int(place), float(score)) for (score, _), place in zip(hits, places, strict=True)]


def _build_schema(tantivy: Any, analyzer: Analyzer) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(TEXT, stored=False, tokenizer_name=_NAMES[analyzer], index_option="freq")
    builder.add_unsigned_field(PLACE, stored=False, indexed=False, fast=True)
    return builder.build()


def _build_analyzer(tantivy: Any, analyzer: Analyzer) -> Any:
    """Build the twin of the analyzer that tantivy has under that name: it cannot be asked for."""
    part = tantivy.Filter
    chain = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    chain = chain.filter(part.remove_long(WORD_BYTES_MAX)).filter(part.lowercase())
    return (chain.filter(part.stemmer("english")) if analyzer is Analyzer.ENGLISH else chain).build()
