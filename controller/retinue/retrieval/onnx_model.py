"""A sentence model in ONNX on the CPU: the one door to onnxruntime and tokenizers.

One text at a time, on one thread each: a quantised model gives a text other numbers in other company, and on CPUs
texts side by side are faster than texts in a batch.
"""

import importlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from retinue.errors import PermanentError, UsageError
from retinue.retrieval.foreign import Foreign
from retinue.terms.record import DecodeError, Record, from_json

MODEL, TOKENIZER, SETTINGS = "model.onnx", "tokenizer.json", "embedder.json"
TEXT_CHARS_MAX = 16_384
"""Of a text before it is cut to tokens: more than any model here reads."""


class OnnxSettings(Record, frozen=True, forbid_unknown_fields=True):
    """`embedder.json` beside a model that wants something else than these."""

    pooling: str = "mean"
    """`mean` of all tokens, or `first` token."""
    query_prefix: str = ""
    """E5 wants "query: "."""
    passage_prefix: str = ""
    tokens_max: int = 256


class OnnxModel:
    """An open model; any thread may ask."""

    def __init__(self, directory: Path, workers: int) -> None:
        """Open it. Errors: UsageError, PermanentError say what is missing."""
        self._directory = directory
        self._settings = _read_settings(directory)
        self._numpy, runtime, tokenizers = _import_libraries()
        for name in (MODEL, TOKENIZER):
            if not (directory / name).is_file():
                raise UsageError(f"cannot use embedder {str(directory)!r}: there is no {name}")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        with Foreign(f"cannot open {directory / MODEL}"):
            providers = ["CPUExecutionProvider"]
            self._session = runtime.InferenceSession(str(directory / MODEL), options, providers=providers)
        self._names = [given.name for given in self._session.get_inputs()]
        self._tokenizer = _read_tokenizer(tokenizers, directory / TOKENIZER, self._settings.tokens_max)
        self._workers = workers

    def embed(self, texts: Sequence[str], kind: str) -> list[list[float]]:
        """Embed texts side by side. Errors: PermanentError."""
        if len(texts) == 1:
            return [self._embed(texts[0], kind)]
        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(lambda text: self._embed(text, kind), texts))

    def _embed(self, text: str, kind: str) -> list[float]:
        numpy, settings = self._numpy, self._settings
        prefix = settings.query_prefix if kind == "query" else settings.passage_prefix
        ids = self._tokenizer.encode(prefix + text[:TEXT_CHARS_MAX]).ids
        if not ids:
            raise PermanentError(f"cannot use {self._directory / TOKENIZER}: it gives no token for an empty text")
        tokens = numpy.asarray([ids], dtype="int64")
        feed = {"input_ids": tokens, "attention_mask": numpy.ones_like(tokens), "token_type_ids": tokens * 0}
        with Foreign(f"cannot use {self._directory / MODEL}"):
            states = self._session.run(None, {name: feed[name] for name in self._names})[0]
        # A model that pools by itself gives one vector, others one per token.
        vector = states[0] if states.ndim == 2 else self._pool(states[0])
        length = float(numpy.linalg.norm(vector))
        if not 0 < length < float("inf"):
            raise PermanentError(f"cannot use {self._directory / MODEL}: a vector of length {length}")
        return (vector / length).tolist()  # type: ignore[no-any-return]

    def _pool(self, states: Any) -> Any:
        return states[0] if self._settings.pooling == "first" else states.mean(axis=0)


def _import_libraries() -> tuple[Any, Any, Any]:
    try:
        return tuple(importlib.import_module(name) for name in ("numpy", "onnxruntime", "tokenizers"))  # type: ignore[return-value]
    except ImportError as error:
        raise PermanentError(f"cannot use an ONNX embedder: {error}; pip install 'retinue[retrieval]'") from None


def _read_settings(directory: Path) -> OnnxSettings:
    path = directory / SETTINGS
    try:
        settings = from_json(path.read_bytes(), OnnxSettings)
    except FileNotFoundError:
        return OnnxSettings()
    except (OSError, DecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    if settings.pooling not in ("mean", "first") or settings.tokens_max < 1:
        raise UsageError(f"cannot use {path}: pooling is `mean` or `first`, tokens_max at least 1")
    return settings


def _read_tokenizer(tokenizers: Any, path: Path, tokens_max: int) -> Any:
    with Foreign(f"cannot open {path}"):
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.enable_truncation(tokens_max)
    return tokenizer
