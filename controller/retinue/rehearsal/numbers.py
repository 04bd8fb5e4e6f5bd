"""Its metrics, in the words of each engine that it may stand in for. Pure."""

from typing import NamedTuple


class Numbers(NamedTuple):
    """What it does."""

    running: int
    prompt_tokens: int
    made_tokens: int


def build_metrics(numbers: Numbers) -> str:
    """Build Prometheus' text with the names that vLLM, SGLang and llama.cpp use."""
    running, prompt, made = numbers
    rows = {
        'vllm:num_requests_running{engine="0"}': running,
        'vllm:num_requests_waiting{engine="0"}': 0,
        'vllm:prompt_tokens_total{engine="0"}': prompt,
        'vllm:generation_tokens_total{engine="0"}': made,
        "sglang:num_running_reqs": running,
        "sglang:num_queue_reqs": 0,
        'sglang:realtime_tokens_total{mode="decode"}': made,
        "sglang:prompt_tokens_total": prompt,
        "llamacpp:requests_processing": running,
        "llamacpp:requests_deferred": 0,
        "llamacpp:n_decode_total": made,
        "llamacpp:prompt_tokens_total": prompt,
        "rehearsal:made_tokens_total": made,
    }
    return "".join(f"{name} {value}\n" for name, value in rows.items())
