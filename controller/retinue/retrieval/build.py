"""`retinue index build`: a corpus becomes an index, once, whoever asks at the same time.

Built beside its name and renamed when it is whole: a name with an `index.json` is always a whole index. Interrupted, it
goes on where it was: passages and words by step, vectors by row.
"""

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from retinue import __version__
from retinue.errors import PermanentError, UsageError
from retinue.retrieval.corpus import hash_corpus, read_corpus
from retinue.retrieval.dense import build_dense, choose_shape, import_faiss
from retinue.retrieval.embedding import MARK, PASSAGE, Embedder, embed_one, is_directory, load_embedder
from retinue.retrieval.facts import hash_files, read_facts, write_facts
from retinue.retrieval.lexical import build_lexical, import_tantivy
from retinue.retrieval.passages import read_all, write_passages
from retinue.retrieval.records import (
    FORMAT,
    LEXICAL,
    STATE,
    VECTORS,
    Analyzer,
    DenseFacts,
    IndexFacts,
    Progress,
    Recipe,
)
from retinue.retrieval.turn import State, Turn, take_turn, write_state
from retinue.terms.record import replace

_WORDS = {
    "corpus_bytes": "corpus",
    "corpus_sha256": "corpus",
    "analyzer": "analyzer",
    "embedder": "embedder",
    "is_exact": "kind of vectors",
}
EMBEDDED = 64
"""Passages that are embedded between two writes."""


@dataclass(frozen=True)
class Order:
    """What somebody wants built."""

    corpus: Path
    out: Path
    analyzer: Analyzer = Analyzer.ENGLISH
    embedder: str = ""
    """Empty: no vectors."""
    is_exact: bool | None = None
    replaces: bool = False
    """An index of something else that is there already is thrown away."""
    workers: int = 1


@dataclass(frozen=True)
class Built:
    """The index that is there now."""

    facts: IndexFacts
    was_there: bool


def build_index(order: Order, progress: Progress) -> Built:
    """Build what is wanted, or find it built.

    Errors: UsageError names what is wrong with the corpus or the order; PermanentError what is missing here;
            TransientError and OSError when the file system failed: asked again it goes on.
    """
    import_tantivy()
    embedder = load_embedder(order.embedder, order.workers) if order.embedder else None
    size, digest = hash_corpus(order.corpus, progress)
    recipe = Recipe(size, digest, order.analyzer, _name_embedder(order.embedder), order.is_exact)
    order.out.parent.mkdir(parents=True, exist_ok=True)
    with take_turn(order.out, progress) as turn:
        found = _look(order, recipe)
        if found is not None:
            return Built(found, was_there=True)
        state = turn.find_left(recipe)
        if state is None:
            turn.place.mkdir()
            state = State(recipe)
        try:
            return Built(_Builder(order, turn, progress, state).build(embedder), was_there=False)
        except UsageError:
            shutil.rmtree(turn.place, ignore_errors=True)
            raise


def _look(order: Order, recipe: Recipe) -> IndexFacts | None:
    """Look whether it is there already. Errors: UsageError when something else is."""
    if not os.path.lexists(order.out) or (order.out.is_dir() and not any(order.out.iterdir())):
        return None
    try:
        found = read_facts(order.out)
    except FileNotFoundError:
        raise UsageError(f"cannot build {order.out}: it is there and is no index; give another --out") from None
    except PermanentError as error:
        if order.replaces:
            return None
        raise UsageError(f"{error}; give --replace when no service uses it") from None
    if found.recipe == recipe:
        return found
    if order.replaces:
        return None
    names = [name for name in Recipe.__struct_fields__ if getattr(found.recipe, name) != getattr(recipe, name)]
    raise UsageError(
        f"cannot build {order.out}: an index with another {_WORDS[names[0]]} is there;"
        " give another --out, or --replace when no service uses it"
    )


def _name_embedder(spec: str) -> str:
    """Make a directory absolute: services start elsewhere."""
    return str(Path(spec).absolute()) if is_directory(spec) else spec


class _Builder:
    """One build, step by step."""

    def __init__(self, order: Order, turn: Turn, progress: Progress, state: State) -> None:
        self._order = order
        self._turn = turn
        self._state = state
        self._told = progress

    def build(self, embedder: Embedder | None) -> IndexFacts:
        """Do every step that is not done. Errors: as `build_index`."""
        self._do("passages", self._write_passages)
        self._do("words", self._index_words)
        dense = None
        if embedder is not None:
            dense = self._describe_dense(embedder)
            self._do("vectors", lambda: self._write_vectors(embedder, dense.dimension))
            shape = choose_shape(self._state.passages, self._order.is_exact)
            self._do(
                "dense", lambda: build_dense(self._place, self._state.passages, dense.dimension, shape, self._show)
            )
        return self._seal(dense)

    @property
    def _place(self) -> Path:
        return self._turn.place

    def _show(self, what: str, done: int, total: int) -> None:
        self._turn.check()
        self._told(what, done, total)

    def _do(self, step: str, work: Callable[[], None]) -> None:
        if step in self._state.done:
            return
        self._turn.check()
        work()
        self._turn.check()
        self._state = replace(self._state, done=[*self._state.done, step])
        write_state(self._place, self._state)

    def _write_passages(self) -> None:
        before = os.stat(self._order.corpus)
        count = write_passages(self._place, read_corpus(self._order.corpus, self._show, "reading passages"))
        after = os.stat(self._order.corpus)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise UsageError(f"cannot index {self._order.corpus}: it changed while it was read")
        self._state = replace(self._state, passages=count)

    def _index_words(self) -> None:
        shutil.rmtree(self._place / LEXICAL, ignore_errors=True)
        total = self._state.passages
        build_lexical(self._place / LEXICAL, read_all(self._place), total, self._order.analyzer, self._show)

    def _describe_dense(self, embedder: Embedder) -> DenseFacts:
        mark = embed_one(embedder, MARK, PASSAGE)
        lists, probes = choose_shape(self._state.passages, self._order.is_exact)
        return DenseFacts(self._state.recipe.embedder, len(mark), not lists, probes, mark)

    def _write_vectors(self, embedder: Embedder, dimension: int) -> None:
        _, numpy = import_faiss()
        row_bytes = 4 * dimension
        with open(self._place / VECTORS, "ab") as stream:
            # An earlier builder may have died in the middle of a row.
            done = stream.tell() // row_bytes
            stream.truncate(done * row_bytes)
            left = itertools.islice(read_all(self._place), done, None)
            while some := list(itertools.islice(left, EMBEDDED)):
                rows = numpy.asarray(embedder.embed([one.contents for one in some], PASSAGE), dtype="<f4")
                if rows.shape != (len(some), dimension):
                    raise UsageError(
                        f"cannot use the embedder: its vectors have {rows.shape[1]}, then {dimension} numbers"
                    )
                stream.write(rows.tobytes())
                stream.flush()
                done += len(some)
                self._show("embedding passages", done, self._state.passages)
            os.fsync(stream.fileno())

    def _seal(self, dense: DenseFacts | None) -> IndexFacts:
        for path in (self._place / LEXICAL).glob("*.lock"):
            path.unlink()
        facts = IndexFacts(
            format=FORMAT,
            made_by=f"retinue {__version__}, {import_tantivy().__version__}",
            recipe=self._state.recipe,
            corpus=self._order.corpus.name,
            passages=self._state.passages,
            dense=dense,
            files=hash_files(self._place, self._show),
        )
        self._turn.check()
        # Only now: until here a builder that dies leaves something to go on with.
        (self._place / VECTORS).unlink(missing_ok=True)
        (self._place / STATE).unlink()
        write_facts(self._place, facts)
        self._put_in_place()
        return facts

    def _put_in_place(self) -> None:
        out = self._order.out
        aside = out.with_name(f"{out.name}.building-old")
        if os.path.lexists(out):
            out.rename(aside)
        self._place.rename(out)
        shutil.rmtree(aside, ignore_errors=True)
