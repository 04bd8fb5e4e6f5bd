"""Text to vectors: a model of ours on the CPU, or a function of yours.

What is given: the name of a fetched model (`retinue models fetch NAME`), a directory, with a slash, that has
`model.onnx` and `tokenizer.json`, or `module:function`, called as `function(texts, kind)` with kind "query" or
"passage", which returns one row of numbers per text. Every vector gets length 1.
"""

import importlib
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from retinue import models
from retinue.errors import PermanentError, UsageError
from retinue.retrieval.foreign import Foreign
from retinue.retrieval.onnx_model import OnnxModel

QUERY, PASSAGE = "query", "passage"
TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
MARK = "The tide tables of the harbour are printed in spring."
ALIKE = 0.99
"""Cosine of the mark's two vectors: other hardware rounds differently, another model is far away."""


class Embedder(Protocol):
    """Makes vectors; any thread may ask."""

    def embed(self, texts: Sequence[str], kind: str) -> list[list[float]]:
        """One vector of length 1 per text. Errors: RetinueError."""


def load_embedder(spec: str, workers: int) -> Embedder:
    """Load what was given.

    Errors: UsageError when it is none of the three; PermanentError when it cannot be loaded.
    """
    if TARGET.fullmatch(spec):
        return FunctionEmbedder(spec, import_function(spec))
    return OnnxModel(find_model(spec), workers)


def find_model(spec: str) -> Path:
    """Find the directory of a model, given by path or by name. Errors: UsageError, PermanentError."""
    if not is_directory(spec):
        return models.find(spec)
    if not Path(spec).is_dir():
        raise UsageError(f"cannot use embedder {spec!r}: there is no such directory")
    return Path(spec)


def is_directory(spec: str) -> bool:
    """Say whether a directory is meant: it has a slash, `./minilm`, so that no file changes what a name means."""
    return "/" in spec


def check_mark(embedder: Embedder, mark: Sequence[float]) -> None:
    """See that this is the embedder the index was built with. Errors: PermanentError."""
    vector = embed_one(embedder, MARK, PASSAGE)
    if len(vector) != len(mark):
        raise PermanentError(f"cannot use the embedder: it makes {len(vector)} numbers, the index has {len(mark)}")
    alike = sum(one * other for one, other in zip(vector, mark, strict=True))
    if alike < ALIKE:
        raise PermanentError(
            f"cannot use the embedder: it is not the one the index was built with (cosine {alike:.3f} on the same text)"
        )


def embed_one(embedder: Embedder, text: str, kind: str) -> list[float]:
    """Embed one text. Errors: RetinueError."""
    return embedder.embed([text], kind)[0]


class FunctionEmbedder:
    """A function of the user's, held to its word."""

    def __init__(self, spec: str, function: Callable[[list[str], str], Any]) -> None:
        self._spec = spec
        self._function = function

    def embed(self, texts: Sequence[str], kind: str) -> list[list[float]]:
        """Call it. Errors: PermanentError when it gives something else than one row of numbers per text."""
        with Foreign(f"cannot use embedder {self._spec!r}"):
            rows = [[float(number) for number in row] for row in self._function(list(texts), kind)]
        if len(rows) != len(texts) or len({len(row) for row in rows}) > 1:
            raise PermanentError(f"cannot use embedder {self._spec!r}: {len(rows)} rows for {len(texts)} texts")
        return [self._scale(row) for row in rows]

    def _scale(self, row: list[float]) -> list[float]:
        length = math.sqrt(sum(number * number for number in row))
        if not (length > 0 and math.isfinite(length)):
            raise PermanentError(f"cannot use embedder {self._spec!r}: a vector of length {length}")
        return [number / length for number in row]


def import_function(spec: str) -> Callable[..., Any]:
    """Import `module:function`. Errors: PermanentError."""
    name, _, attribute = spec.partition(":")
    with Foreign(f"cannot import {spec!r}; is its directory in PYTHONPATH or --plugin-path?"):
        found: Any = importlib.import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
    if not callable(found):
        raise PermanentError(f"cannot use {spec!r}: it is no function")
    return found  # type: ignore[no-any-return]
