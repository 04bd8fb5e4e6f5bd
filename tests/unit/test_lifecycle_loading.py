"""A start that loads may take longer than its budget; one that does not, or whose loader died, may not."""

import pytest

from retinue.lifecycle.loading import LEAST_BYTES, QUIET_S, Loading, Look

BUDGET_S = 600.0


def play(*looks: tuple[float, Look]) -> str:
    """Feed (seconds, look) in turn; the last answer."""
    loading, lost = Loading(BUDGET_S, 0.0, 0.0), ""
    for now_s, look in looks:
        loading, lost = loading.observe(look, now_s)
    return lost


@pytest.mark.parametrize("grows", ["log_bytes", "memory_bytes", "read_bytes", "faults"])
def test_the_budget_goes_on_while_any_sign_of_loading_grows(grows: str) -> None:
    steps = [(float(at), Look(**{grows: at * LEAST_BYTES})) for at in range(0, 7200, 60)]
    assert play(*steps) == ""


def test_a_start_that_loads_nothing_is_given_up_when_its_budget_is_over_and_not_before() -> None:
    same = Look(memory_bytes=1 << 30, log_bytes=100)
    assert play((0.0, same), (BUDGET_S - 1, same)) == ""
    lost = play((0.0, same), (BUDGET_S + 1, same))
    assert lost == "startup probe did not pass in 601 s, and nothing was loaded for 601 s"


def test_memory_that_comes_and_goes_is_no_progress() -> None:
    steps: list[tuple[float, Look]] = [(0.0, Look(memory_bytes=1 << 30))]
    steps += [(float(at), Look(memory_bytes=(1 << 30) - (at % 2) * (1 << 29))) for at in range(1, 800)]
    assert "nothing was loaded" in play(*steps)


def test_a_reader_that_ended_takes_its_count_along_and_the_next_ones_reading_counts_all_the_same() -> None:
    steps = [(0.0, Look(read_bytes=1 << 40)), (BUDGET_S, Look(read_bytes=0))]
    assert play(*steps, (BUDGET_S + 1, Look(read_bytes=LEAST_BYTES))) == ""


def test_a_loader_that_nobody_buries_ends_the_start_at_the_second_look() -> None:
    dead = Look(dead={33: "(EngineCore) died of signal 9"})
    assert play((1.0, dead)) == ""
    assert play((1.0, dead), (2.0, dead)) == "its process 33 (EngineCore) died of signal 9, and the rest waits for it"
    assert play((1.0, dead), (2.0, Look()), (3.0, dead)) == ""


def test_an_engines_process_that_vanished_ends_the_start() -> None:
    there = Look(loaders={9: "VLLM::EngineCor"})
    assert play((1.0, there), (2.0, Look())) == ""
    assert "its process 9 VLLM::EngineCor is gone" in play((1.0, there), (2.0, Look()), (3.0, Look()))


def test_quiet_time_counts_anew_for_whoever_slept_himself() -> None:
    loading = Loading(BUDGET_S, 0.0, 0.0).restart(5000.0)
    assert loading.observe(Look(), 5000.0 + QUIET_S - 1)[1] == ""
    assert loading.observe(Look(), 5000.0 + QUIET_S + 1)[1] != ""
