"""What an index is made of, and what a search finds. Pure values."""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from retinue.terms.record import Record

FACTS = "index.json"
STATE = "building.json"
"""How far an unfinished one is."""
PASSAGES = "passages.jsonl"
PLACES = "passages.places"
LEXICAL = "bm25"
VECTORS = "vectors.f32"
DENSE = "dense.faiss"
FORMAT = 1

Progress = Callable[[str, int, int], None]
"""Told of (what is being done, done, of so many); 0 of 0: nobody knows."""


class Method(str, Enum):
    """How passages are found."""

    BM25 = "bm25"
    """By their words."""
    DENSE = "dense"
    """By the nearness of their vectors."""
    HYBRID = "hybrid"
    """Both, fused by rank."""


class Analyzer(str, Enum):
    """How text becomes words."""

    ENGLISH = "english"
    """Lower case, English word stems."""
    PLAIN = "plain"
    """Lower case."""


class Passage(Record, frozen=True):
    """One passage of the corpus."""

    id: str
    """As the corpus has it; the number of its line where it has none."""
    contents: str
    """Title in the first line, the text after it, as Search-R1's corpora have it."""


class Hit(NamedTuple):
    """A passage that was found."""

    place: int
    """Where it is in the corpus, from 0."""
    score: float


class FileFacts(Record, frozen=True):
    """One file of an index."""

    size: int
    sha256: str


class DenseFacts(Record, frozen=True):
    """How the vectors were made."""

    embedder: str
    """As it was given: a model's name, a directory, or `module:function`."""
    dimension: int
    is_exact: bool
    """Every vector is compared; else the nearest lists only."""
    probes: int
    """Lists that are looked through; 0 when exact."""
    mark: list[float]
    """The vector of one fixed text: an embedder that makes another of it is not the one."""


class Recipe(Record, frozen=True):
    """What an index is built from, and how: the same recipe gives the same index."""

    corpus_bytes: int
    corpus_sha256: str
    analyzer: Analyzer = Analyzer.ENGLISH
    embedder: str = ""
    """Empty: no vectors."""
    is_exact: bool | None = None
    """None: by the number of passages."""


class IndexFacts(Record, frozen=True):
    """`index.json`, written last: a directory with it is a whole index."""

    format: int
    made_by: str
    """Versions of retinue and of the libraries, for people."""
    recipe: Recipe
    corpus: str
    """Name of the corpus file, for people."""
    passages: int
    dense: DenseFacts | None
    files: dict[str, FileFacts]
    """Path below the directory -> what it was when it was written."""
