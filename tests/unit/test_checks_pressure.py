"""When the node is short, what that does to a wall limit, and what is written down about it."""

import pytest

from retinue.checks.ledger import FIRST, RATED, ErrorRates, Ledger
from retinue.checks.pressure import KEPT_S, Pressure, Sample, compute_queue, find_deadline, parse_running
from retinue.checks.tally import Tally
from retinue.terms.outcome import Outcome, OutcomeKind


def feed(pressure: Pressure, rows: list[tuple[float, float, float | None]]) -> list[bool]:
    """Note (at, lag, queue) one by one; whether the node is short after each."""
    states = []
    for row in rows:
        pressure.note(Sample(*row))
        states.append(pressure.is_short)
    return states


@pytest.mark.parametrize(
    ("lag_s", "queue", "is_short"),
    [
        (0.0, 0.0, False),
        (0.099, 1.99, False),
        (0.1, 0.0, True),
        (5.0, 0.0, True),
        (0.0, 2.0, True),
        (0.0, 40.0, True),
        (0.0, None, False),
        (0.1, None, True),
    ],
)
def test_the_node_is_short_at_100_ms_of_lag_or_two_runnable_threads_a_cpu(
    lag_s: float, queue: float | None, is_short: bool
) -> None:
    assert feed(Pressure(), [(1.0, lag_s, queue)]) == [is_short]


def test_one_crowded_instant_in_a_quiet_second_is_not_a_short_node() -> None:
    calm = [(number / 10, 0.0, 0.5) for number in range(9)]
    assert not any(feed(Pressure(), [*calm, (0.9, 0.0, 9.0)]))


def test_a_crowd_that_lasts_is_noticed_within_a_second_and_so_is_its_end() -> None:
    pressure = Pressure()
    feed(pressure, [(number / 10, 0.0, 0.0) for number in range(10)])
    crowded = feed(pressure, [(1 + number / 10, 0.0, 4.0) for number in range(11)])
    assert not crowded[0]
    assert crowded[-1]
    calm = feed(pressure, [(2.1 + number / 10, 0.0, 0.0) for number in range(11)])
    assert calm[0]
    assert not calm[-1]
    (period,) = pressure.periods
    assert period.to_s is not None
    assert 0.5 < period.to_s - period.from_s < 1.6


def test_a_loop_that_woke_late_was_short_from_when_it_should_have_woken() -> None:
    pressure = Pressure()
    feed(pressure, [(1.0, 0.0, 0.0), (6.0, 4.9, 0.0)])
    assert pressure.periods[0].from_s == pytest.approx(1.1)
    assert pressure.short_between(0.0, 6.0) == pytest.approx(4.9)


def test_two_stalls_are_never_counted_twice() -> None:
    pressure = Pressure()
    feed(pressure, [(2.0, 1.0, 0.0), (2.1, 0.0, 0.0), (4.0, 3.0, 0.0)])
    assert pressure.short_between(0.0, 4.0) == pytest.approx(1.1 + 1.9)


def test_only_the_part_of_a_period_within_a_checks_time_counts() -> None:
    pressure = Pressure()
    feed(pressure, [(10.0, 0.0, 5.0), (12.0, 0.0, 0.0), (20.0, 0.0, 5.0)])
    assert pressure.short_between(11.0, 21.0) == pytest.approx(2.0)
    assert pressure.short_between(13.0, 19.0) == 0.0
    assert pressure.short_between(0.0, 11.0) == pytest.approx(1.0)


def test_old_periods_are_forgotten_but_not_the_one_that_lasts() -> None:
    pressure = Pressure()
    feed(pressure, [(0.0, 0.2, 0.0), (2.0, 0.0, 0.0), (KEPT_S + 10, 0.2, 0.0), (3 * KEPT_S, 0.2, 0.0)])
    assert [period.to_s for period in pressure.periods] == [None]


@pytest.mark.parametrize(
    ("short_s", "deadline_s"),
    [(0.0, 110.0), (1.5, 111.5), (19.9, 129.9), (20.0, 130.0), (500.0, 130.0), (-1.0, 110.0)],
)
def test_a_wall_limit_of_10_s_stretches_by_what_the_node_was_short_up_to_three_times(
    short_s: float, deadline_s: float
) -> None:
    assert find_deadline(100.0, 10.0, short_s) == pytest.approx(deadline_s)


@pytest.mark.parametrize(
    ("running", "surplus", "cpus", "queue"),
    [(8, 0, 2, 4.0), (8, 6, 2, 1.0), (3, 9, 2, 0.0), (None, 0, 2, None), (4, 0, 0, 4.0)],
)
def test_what_the_policy_forks_beyond_one_thread_a_check_makes_no_node_short(
    running: int | None, surplus: int, cpus: int, queue: float | None
) -> None:
    assert compute_queue(running, surplus, cpus) == queue


@pytest.mark.parametrize(
    ("text", "running"),
    [
        ("0.20 0.18 0.12 5/80 11206\n", 4),
        ("0.20 0.18 0.12 1/80 11206", 0),
        ("0 0 0 0/1 1", 0),
        ("", None),
        ("a b c d", None),
    ],
)
def test_the_reader_of_loadavg_does_not_count_itself(text: str, running: int | None) -> None:
    assert parse_running(text) == running


def test_an_outage_is_one_entry_from_its_first_beginning_to_its_end() -> None:
    ledger = Ledger("checks", "n1")
    ledger.end("node_pressure", 5.0)
    ledger.begin("node_pressure", 10.0, "run queue 3.0 per CPU")
    ledger.begin("node_pressure", 11.0, "again")
    ledger.begin("warm_parent_down", 12.0)
    ledger.end("node_pressure", 13.0)
    assert [(entry.cause, entry.from_utc, entry.to_utc, entry.detail) for entry in ledger.read()] == [
        ("node_pressure", 10.0, 13.0, "run queue 3.0 per CPU"),
        ("warm_parent_down", 12.0, None, ""),
    ]


def test_a_ledger_never_grows_beyond_its_bound_and_keeps_what_lasts() -> None:
    ledger = Ledger("checks", "n1")
    ledger.begin("warm_parent_down", 0.0)
    for number in range(5000):
        ledger.begin("node_pressure", float(number))
        ledger.end("node_pressure", number + 0.5)
    entries = ledger.read()
    assert len(entries) == 1001
    assert entries[0].cause == "warm_parent_down"
    assert entries[-1].from_utc == 4999.0


def test_a_verifier_is_warned_about_once_when_it_passes_one_in_five_and_again_after_it_got_better() -> None:
    rates = ErrorRates()
    assert [rates.note("math", number % 5 == 0) for number in range(RATED)] == [None] * RATED
    warning = next(filter(None, (rates.note("math", True) for _ in range(5))))
    assert "'math'" in warning
    assert rates.note("math", True) is None
    assert rates.warned == {"math"}
    assert [rates.note("math", False) for _ in range(RATED)] == [None] * RATED
    assert rates.warned == frozenset()
    assert sum(rates.note("math", True) is not None for _ in range(RATED)) == 1


def test_too_few_checks_of_a_verifier_warn_of_nothing() -> None:
    rates = ErrorRates()
    assert rates.note("new", False) is None
    assert [rates.note("new", True) for _ in range(RATED - 2)] == [None] * (RATED - 2)
    assert rates.note("new", True) is not None


def test_a_verifier_that_raised_on_each_of_its_first_ten_responses_is_warned_about_then_and_once() -> None:
    rates = ErrorRates()
    assert [rates.note("new", True) for _ in range(FIRST - 1)] == [None] * (FIRST - 1)
    assert "raised on 10 of its last 10" in str(rates.note("new", True))
    assert rates.warned == {"new"}
    assert [rates.note("new", True) for _ in range(2 * RATED)] == [None] * 2 * RATED


def test_a_fault_of_the_verifier_itself_is_warned_about_the_first_time_whatever_the_outcome() -> None:
    killed, rejected = (
        Outcome(outcome=kind, score=score, verifier="mine", reason="returned nothing")
        for kind, score in ((OutcomeKind.KILLED, 0.0), (OutcomeKind.REJECTED, None))
    )
    for outcome in (killed, rejected):
        tally = Tally()
        assert tally.note(outcome, is_error=False, is_bug=True) == "verifier 'mine' is broken: returned nothing"
        assert tally.note(outcome, is_error=False, is_bug=True) is None
