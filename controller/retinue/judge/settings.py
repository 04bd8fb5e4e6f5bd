"""What one judge is started with: its command line, checked before anything is loaded."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from retinue import models
from retinue.errors import UsageError
from retinue.terms.record import Record

KEY = "JUDGE_API_KEY"
"""Environment name of the key that callers must send; in no argv, because that is for everybody to read."""
MAGIC = b"GGUF"


class Settings(Record, frozen=True):
    """One judge."""

    host: str
    port: int
    model: str
    """Path of a GGUF file."""
    alias: str
    """The name it answers to in `/v1/models`."""
    context: int
    """Tokens of all requests together that are under way."""
    parallel: int
    threads: int
    batch: int
    """Tokens of prompts computed in one step; between steps it can tell that it gets on."""
    gpu_layers: int
    api_key: str = ""


def build_parser() -> argparse.ArgumentParser:
    """Build the command line; everything in it is a parameter of templates/judge-llamacpp.yaml too.

    Shape:  an option that a template's absent parameter leaves without a value has its default.
    """
    parser = argparse.ArgumentParser(prog="python -m retinue.judge", allow_abbrev=False, description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, required=True, help="port to listen on")
    add("--model", required=True, help="path of a GGUF file, or the name of a fetched model: smollm2")
    add("--alias", nargs="?", help="name in /v1/models; default: the model's")
    add("--context", type=int, default=8192, help="tokens of all requests under way together")
    add("--parallel", type=int, default=4, help="requests computed at once; more wait")
    add("--threads", type=int, nargs="?", help="threads that compute; default: half of the CPUs it may use")
    add("--batch", type=int, default=128, help="tokens of prompts computed in one step")
    add("--gpu-layers", type=int, default=0, help="layers to put on a GPU, where the installed wheel can")
    return parser


def build_settings(words: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Check the command line and find the model.

    Errors: UsageError says what has no meaning, or which command fetches the model.
    """
    threads = count_threads() if words.threads is None else words.threads
    numbers = (("context", words.context), ("parallel", words.parallel), ("threads", threads), ("batch", words.batch))
    for name, value in numbers:
        if value < 1:
            raise UsageError(f"--{name} is {value}; it is at least 1")
    path = find_weights(words.model)
    check_weights(path)
    return Settings(
        host=words.host,
        port=words.port,
        model=str(path),
        alias=words.alias or path.stem,
        context=words.context,
        parallel=words.parallel,
        threads=threads,
        batch=words.batch,
        gpu_layers=words.gpu_layers,
        api_key=env.get(KEY, ""),
    )


def find_weights(model: str) -> Path:
    """Find the file of a model given by path or name. Errors: UsageError."""
    return Path(model) if "/" in model or model.endswith(".gguf") else models.find(model)


def check_weights(path: Path) -> None:
    """See that it is a GGUF file. Errors: UsageError."""
    try:
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(f"cannot read the model {str(path)!r}: {(error.strerror or 'error').lower()}") from None
    if first != MAGIC:
        raise UsageError(f"cannot use the model {str(path)!r}: it is no GGUF file")


def count_threads() -> int:
    """Half of the CPUs this process may use, at least one.

    Its threads wait for each other at every layer: with one per CPU, a neighbour that takes one of them stops all (on
    two shared CPUs, 2 threads made 2-7 tokens/s and 1 thread 45).
    """
    return max(1, len(os.sched_getaffinity(0)) // 2)
