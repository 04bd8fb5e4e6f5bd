"""A job that is not longer than its own end is told of, when it is submitted and when it begins."""

import pytest

from retinue.supervise.time_left import check_time_limit, warn_of_time_left
from support.world import build_test_plan, service


@pytest.mark.parametrize(
    ("limit_s", "drain_s", "says"),
    [
        (120.0, 120.0, "the trainer gets no time"),
        (60.0, 120.0, "the trainer gets no time"),
        (121.0, 120.0, "have 1 s together"),
        (180.0, 120.0, "have 60 s together"),
    ],
)
def test_a_limit_that_the_drain_takes_up_is_named_with_both_numbers_and_the_remedy(
    limit_s: float, drain_s: float, says: str
) -> None:
    (said,) = check_time_limit(limit_s, drain_s)
    assert said.startswith(f"the time limit is {limit_s:g} s, and run.drain takes {drain_s:g} s")
    assert says in said
    assert "longer --time" in said
    plan = build_test_plan([service("judge")], end_utc=5000.0, drain_s=drain_s)
    (warning,) = warn_of_time_left(plan, 5000.0 - limit_s).warnings
    assert warning.startswith(f"the job ends in {limit_s:g} s")
    assert says in warning


@pytest.mark.parametrize(("limit_s", "drain_s"), [(181.0, 120.0), (60.0, 0.0), (None, 120.0)])
def test_a_limit_with_time_left_or_that_nobody_knows_is_not_spoken_of(limit_s: float | None, drain_s: float) -> None:
    assert check_time_limit(limit_s, drain_s) == []
    end_utc = None if limit_s is None else 5000.0
    plan = build_test_plan([service("judge")], end_utc=end_utc, drain_s=drain_s)
    assert warn_of_time_left(plan, 5000.0 - (limit_s or 0.0)).warnings == ()


def test_a_job_that_is_over_its_time_already_has_none_left() -> None:
    plan = build_test_plan([service("judge")], end_utc=5000.0)
    (warning,) = warn_of_time_left(plan, 6000.0).warnings
    assert warning.startswith("the job ends in 0 s")
