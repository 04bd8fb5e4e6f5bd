"""Slots: a slow check makes room for fresh ones, up to a bound, and nothing is counted twice."""

from dataclasses import dataclass

from retinue.checks.slots import ASIDE_PER_WORKER, Slots


@dataclass
class Fake:
    has_slot: bool = False
    is_aside: bool = False


def take(slots: Slots) -> Fake:
    holder = Fake()
    slots.take(holder)
    return holder


def test_a_slow_check_gives_its_slot_to_a_fresh_one_and_still_runs() -> None:
    slots = Slots(1)
    slow = take(slots)
    assert not slots.has_free
    assert slots.step_aside(slow)
    assert slots.has_free
    assert slots.running_count == 1


def test_beyond_the_bound_a_hang_keeps_its_slot() -> None:
    slots = Slots(1)
    for _ in range(ASIDE_PER_WORKER):
        assert slots.step_aside(take(slots))
    last = take(slots)
    assert not slots.step_aside(last)
    assert not slots.has_free
    assert slots.free(last)
    assert slots.has_free


def test_room_beside_comes_back_when_a_slow_check_ends() -> None:
    slots = Slots(1)
    slow = [take_aside(slots) for _ in range(ASIDE_PER_WORKER)]
    assert not slots.free(slow[0]), "it had no slot: nothing new may start"
    assert slots.step_aside(take(slots))


def take_aside(slots: Slots) -> Fake:
    holder = take(slots)
    assert slots.step_aside(holder)
    return holder


def test_freeing_twice_counts_once() -> None:
    slots = Slots(2)
    holder = take(slots)
    assert slots.free(holder)
    assert not slots.free(holder)
    assert slots.running_count == 0
