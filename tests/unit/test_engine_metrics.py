"""What each engine says of itself is read by its own names; what is no metrics is not believed."""

import pytest

from retinue.lifecycle.progress import Sample
from retinue.node.engines import ENGINES, PARTS_MAX, UnknownMetrics, parse_samples
from retinue.rehearsal.numbers import Numbers, build_metrics

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="judge, the \\"good\\" one"} 3.0
vllm:num_requests_running{engine="1",model_name="judge"} 0.0
vllm:num_requests_waiting{engine="0",model_name="judge"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="judge"} 1.25e+06
vllm:generation_tokens_total{engine="0",model_name="judge"} 812.0 1700000000000
vllm:iteration_tokens_total_sum{engine="0",model_name="judge"} 99.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="judge"} 12345.0
python_gc_objects_collected_total{generation="0"} 1.0
"""
SGLANG = """\
sglang:num_running_reqs{dp_rank="0",model_name="j",tp_rank="0"} 1.0
sglang:num_running_reqs{dp_rank="0",model_name="j",tp_rank="1"} 1.0
sglang:num_queue_reqs{dp_rank="0",model_name="j",tp_rank="0"} 0.0
sglang:realtime_tokens_total{dp_rank="0",mode="decode",tp_rank="0"} 40.0
sglang:realtime_tokens_total{dp_rank="0",mode="prefill_compute",tp_rank="0"} 2.0
sglang:gen_throughput{dp_rank="0",tp_rank="0"} nan
"""
LLAMACPP = """\
llamacpp:prompt_tokens_total 1533
llamacpp:tokens_predicted_total 0
llamacpp:n_decode_total 17
llamacpp:requests_processing 3
llamacpp:requests_deferred 1
"""


def test_vllms_engines_are_told_apart() -> None:
    found = parse_samples(VLLM, ENGINES["vllm"])
    assert found == {"0": Sample(3, 2, (1.25e6, 812, 99)), "1": Sample(0, 0, (0, 0, 0))}


def test_sglangs_ranks_are_added_up_and_a_number_that_is_none_is_skipped() -> None:
    assert parse_samples(SGLANG, ENGINES["sglang"]) == {"0": Sample(2, 0, (42, 0, 0, 0, 0))}


def test_llama_cpp_gets_on_by_decode_calls_while_its_predicted_tokens_stand_still() -> None:
    before = parse_samples(LLAMACPP, ENGINES["llamacpp"])[""]
    after = parse_samples(LLAMACPP.replace(" 17", " 18"), ENGINES["llamacpp"])[""]
    assert before == Sample(3, 1, (17, 1533, 0))
    assert after.marks != before.marks


@pytest.mark.parametrize("text", ["", "<html>busy</html>", "vllm:num_requests_running\n", "\0\x00{}", LLAMACPP])
def test_what_is_not_this_engines_text_is_refused_by_name(text: str) -> None:
    with pytest.raises(UnknownMetrics, match="no vllm:num_requests_running"):
        parse_samples(text, ENGINES["vllm"])


def test_a_text_with_a_million_parts_stays_small() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{part}"}} 1\n' for part in range(1000))
    found = parse_samples(text, ENGINES["vllm"])
    assert len(found) == PARTS_MAX
    assert sum(sample.running for sample in found.values()) == 1000


@pytest.mark.parametrize("engine", ENGINES)
def test_the_scripted_engine_speaks_every_engines_dialect(engine: str) -> None:
    [before] = parse_samples(build_metrics(Numbers(2, 10, 5)), ENGINES[engine]).values()
    [after] = parse_samples(build_metrics(Numbers(2, 10, 6)), ENGINES[engine]).values()
    assert before.running == 2
    assert after.marks != before.marks
