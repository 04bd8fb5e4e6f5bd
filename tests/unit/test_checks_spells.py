"""Which short periods of the node become one entry of the ledger; what stretches a limit stays every one of them."""

import pytest

from retinue.checks.pressure import Pressure, Sample
from retinue.checks.spells import CLOSE_AFTER_S, OPEN_AFTER_S, Spells

TICK_S = 0.1
Entry = tuple[float, float | None]


def watch(is_short_at: list[bool]) -> tuple[Pressure, list[Entry]]:
    """Feed a tick for each truth, with lag for a short one; what would be written down, in order."""
    pressure, spells, written = Pressure(), Spells(), []
    for number, is_short in enumerate(is_short_at):
        now_s = 10.0 + number * TICK_S
        pressure.note(Sample(now_s, TICK_S if is_short else 0.0, 0.0))
        spell = spells.note(pressure, now_s)
        if spell is not None:
            written.append((round(spell.from_s, 3), None if spell.to_s is None else round(spell.to_s, 3)))
    return pressure, written


def ticks(seconds: float) -> int:
    return round(seconds / TICK_S)


def test_a_node_that_flaps_for_a_minute_is_one_entry_with_one_end_and_every_period_still_stretches() -> None:
    flapping = [True, True, False, False, False] * 120
    pressure, written = watch(flapping + [False] * ticks(CLOSE_AFTER_S + 1))
    assert len(pressure.periods) == 120
    assert pressure.short_between(0.0, 1e9) == pytest.approx(120 * 0.3)
    assert written == [(9.9, None), (9.9, 69.7)]


def test_a_moment_of_shortage_is_no_entry_though_it_stretches_a_limit() -> None:
    pressure, written = watch([True] * ticks(OPEN_AFTER_S / 2) + [False] * ticks(60))
    assert written == []
    assert pressure.short_between(0.0, 1e9) == pytest.approx(OPEN_AFTER_S / 2 + TICK_S)


def test_moments_that_are_far_apart_never_add_up_to_an_entry() -> None:
    one = [True] * ticks(OPEN_AFTER_S / 2) + [False] * ticks(CLOSE_AFTER_S + 1)
    assert watch(one * 20)[1] == []


def test_an_entry_is_dated_back_to_when_the_node_became_short_and_ends_when_it_was_last_short() -> None:
    _, written = watch([False] * 10 + [True] * ticks(3) + [False] * ticks(CLOSE_AFTER_S + 1))
    assert written == [(10.9, None), (10.9, 14.0)]


def test_what_lasts_stays_open_and_two_spells_are_two_entries() -> None:
    spell = [True] * ticks(2) + [False] * ticks(CLOSE_AFTER_S + 1)
    _, written = watch([*spell, *spell, *[True] * ticks(2)])
    assert [end is None for _, end in written] == [True, False, True, False, True]
    assert [start for start, _ in written] == pytest.approx([9.9, 9.9, 17.9, 17.9, 25.9])


def test_one_long_stall_is_an_entry_at_once() -> None:
    pressure, spells = Pressure(), Spells()
    pressure.note(Sample(20.0, 4.0, 0.0))
    spell = spells.note(pressure, 20.0)
    assert spell is not None
    assert (spell.from_s, spell.to_s) == (16.0, None)
