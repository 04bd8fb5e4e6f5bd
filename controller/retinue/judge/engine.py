"""The door to xllamacpp: llama.cpp's server in this process, its HTTP included."""

import importlib
import platform
from typing import Any

from retinue.errors import PermanentError, TransientError
from retinue.judge.settings import Settings

WARNINGS = 2
"""llama.cpp's verbosity: one line per request would be most of the log."""


def load_library() -> Any:
    """Import xllamacpp.

    Errors: PermanentError: it is not installed, or this CPU cannot run it.
    """
    try:
        library = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise PermanentError(f"cannot import xllamacpp ({error}): pip install 'retinue[judge]'") from None
    if platform.machine() == "x86_64" and not has_avx2(_read_cpuinfo()):
        raise PermanentError("cannot run xllamacpp here: its wheel needs a CPU with AVX2")
    return library


def has_avx2(cpuinfo: str) -> bool:
    """Tell from /proc/cpuinfo; where it does not say, yes."""
    flags = [line for line in cpuinfo.splitlines() if line.startswith("flags")]
    return not flags or " avx2 " in f"{flags[0]} "


def start_server(library: Any, settings: Settings) -> Any:
    """Load the model and serve it; what is returned serves as long as it is kept.

    Errors: TransientError when it does not load or the port cannot be had.
    """
    try:
        return library.Server(build_params(library.CommonParams(), settings))
    except RuntimeError as error:
        raise TransientError(f"cannot serve {settings.model!r} on port {settings.port}: {error}") from None


def build_params(params: Any, settings: Settings) -> Any:
    """Fill llama.cpp's parameters in."""
    params.model.path = settings.model
    params.model_alias = {settings.alias}
    params.hostnames = [settings.host]
    params.port = settings.port
    params.n_ctx = settings.context
    params.n_parallel = settings.parallel
    # Else each request may have only its share of the context, and a long prompt is refused.
    params.kv_unified = True
    params.n_batch = params.n_ubatch = settings.batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    # Threads that spin while they wait take the CPU from those they wait for.
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.n_gpu_layers = settings.gpu_layers
    params.endpoint_metrics = True
    params.ui = False
    params.offline = True
    params.verbosity = WARNINGS
    params.api_keys = [settings.api_key] if settings.api_key else []
    return params


def _read_cpuinfo() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
