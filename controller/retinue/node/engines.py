"""What each engine calls its numbers: one adapter per engine, and the reading of Prometheus' text. Pure.

Takes only what it needs, line by line: an engine's text is long and may be anything.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from retinue.lifecycle.progress import Sample

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*", re.ASCII)
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"', re.ASCII)
PARTS_MAX = 64
"""Parts of one engine that are told apart; more are counted together with the last."""


class Engine(NamedTuple):
    """Where an engine says what it does."""

    running: str
    waiting: str
    moving: tuple[str, ...]
    """Of these, some change while it works: tokens, or steps that make them."""
    part: str
    """Label that tells its parts apart; empty: it has one."""
    loaders: tuple[str, ...] = ()
    """What the names of processes begin with that it cannot be without, once they are there."""


ENGINES: Mapping[str, Engine] = {
    # vllm/v1/metrics/loggers.py: counted after every step of the engine's core; a prompt counts when it is done, so
    # the histogram's sum is taken too.
    "vllm": Engine(
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        moving=("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_sum"),
        part="engine",
        loaders=("VLLM::",),
    ),
    # sglang/srt/metrics/collector.py: prompt and generation tokens are counted when a request is done, which may take
    # longer than any stall; realtime tokens and throughput are said at every log interval of the scheduler, and once
    # it is idle the running ones are said to be 0.
    "sglang": Engine(
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        moving=(
            "sglang:realtime_tokens_total",
            "sglang:gen_throughput",
            "sglang:prompt_tokens_total",
            "sglang:generation_tokens_total",
            "sglang:inter_token_latency_seconds_count",
        ),
        part="dp_rank",
        loaders=("sglang::",),
    ),
    # llama.cpp tools/server: predicted tokens are counted when a request is done, decode calls as they are made.
    "llamacpp": Engine(
        running="llamacpp:requests_processing",
        waiting="llamacpp:requests_deferred",
        moving=("llamacpp:n_decode_total", "llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total"),
        part="",
    ),
}


class UnknownMetrics(ValueError):
    """The text is not this engine's; the message names what is missing."""


def parse_samples(text: str, engine: Engine) -> dict[str, Sample]:
    """Parse what an engine says of itself, by part.

    Shape:  part -> sample; several series of one part are added up.
    Errors: UnknownMetrics when it does not say how much runs.
    Source: prometheus.io/docs/instrumenting/exposition_formats.
    """
    wanted = {engine.running, engine.waiting, *engine.moving}
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line) if not line.startswith("#") else None
        if match is None or match[1] not in wanted:
            continue
        value = _parse_number(match[3])
        if value is None:
            continue
        part = _find_label(match[2] or "", engine.part)
        numbers = found.setdefault(part if part in found or len(found) < PARTS_MAX else next(reversed(found)), {})
        numbers[match[1]] = numbers.get(match[1], 0.0) + value
    told = {part: numbers for part, numbers in found.items() if engine.running in numbers}
    if not told:
        raise UnknownMetrics(f"no {engine.running} in it")
    return {part: _build_sample(numbers, engine) for part, numbers in told.items()}


def _build_sample(numbers: Mapping[str, float], engine: Engine) -> Sample:
    return Sample(
        running=numbers[engine.running],
        waiting=numbers.get(engine.waiting, 0.0),
        marks=tuple(numbers.get(name, 0.0) for name in engine.moving),
    )


def _find_label(labels: str, name: str) -> str:
    return next((match[2] for match in _LABEL.finditer(labels) if match[1] == name), "") if name else ""


def _parse_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
