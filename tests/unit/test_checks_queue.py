"""The line of waiting checks: round-robin between callers, bounded, nothing lost."""

import random

from retinue.serving.queue import FairQueue

KIB = 1024


def build(limit: int = 100, limit_bytes: int = KIB) -> FairQueue[str]:
    return FairQueue(limit, limit_bytes)


def drain(queue: FairQueue[str]) -> list[str]:
    taken = []
    while (item := queue.pop()) is not None:
        taken.append(item)
    return taken


def test_a_caller_with_one_check_does_not_wait_behind_anothers_thousand() -> None:
    queue = build(2000)
    for number in range(1000):
        queue.put("flood", f"f{number}")
    queue.put("quiet", "q")
    assert [queue.pop(), queue.pop()] == ["f0", "q"]


def test_each_callers_checks_come_out_in_the_order_they_came_in() -> None:
    queue = build()
    for number in range(3):
        queue.put("a", f"a{number}")
        queue.put("b", f"b{number}")
    assert drain(queue) == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_caller_who_comes_back_is_served_after_those_who_wait() -> None:
    queue = build()
    queue.put("a", "a0")
    queue.put("b", "b0")
    queue.put("c", "c0")
    assert queue.pop() == "a0"
    queue.put("a", "a1")
    assert drain(queue) == ["b0", "c0", "a1"]


def test_a_batch_that_does_not_fit_whole_is_not_let_in() -> None:
    queue = build(limit=10)
    for number in range(7):
        queue.put("a", f"a{number}")
    assert queue.has_room(3, 0)
    assert not queue.has_room(4, 0)


def test_bytes_bound_it_too_but_one_large_request_always_fits_an_empty_queue() -> None:
    queue = build(limit_bytes=100)
    assert queue.has_room(1, 1000)
    queue.put("a", "a0", 60)
    assert queue.has_room(1, 40)
    assert not queue.has_room(1, 41)
    assert queue.pop() == "a0"
    assert queue.weight_bytes == 0


def test_removing_what_does_not_wait_changes_nothing() -> None:
    queue = build()
    queue.put("a", "a0", 5)
    assert not queue.remove("a", "a1")
    assert not queue.remove("b", "a0")
    assert queue.remove("a", "a0")
    assert (len(queue), queue.weight_bytes, queue.callers_count) == (0, 0, 0)
    assert queue.pop() is None


def test_a_random_walk_loses_nothing_and_serves_nobody_twice_before_another() -> None:
    chance = random.Random(3)
    queue = build(limit=50, limit_bytes=500)
    waiting: dict[str, list[str]] = {}
    for step in range(5000):
        caller = chance.choice("abcd")
        action = chance.random()
        if action < 0.5 and queue.has_room(1, 10):
            queue.put(caller, f"{caller}{step}", 10)
            waiting.setdefault(caller, []).append(f"{caller}{step}")
        elif action < 0.6 and waiting.get(caller):
            item = waiting[caller].pop(chance.randrange(len(waiting[caller])))
            assert queue.remove(caller, item)
        elif (item := queue.pop()) is not None:
            assert waiting[item[0]].pop(0) == item
        count = sum(map(len, waiting.values()))
        assert len(queue) == count <= 50
        assert queue.weight_bytes == 10 * count
        assert queue.callers_count == sum(1 for line in waiting.values() if line)
    assert sorted(drain(queue)) == sorted(item for line in waiting.values() for item in line)


def test_everything_due_is_taken_at_once_and_the_rest_keeps_its_turn() -> None:
    queue = build()
    for item in ("a0", "a1"):
        queue.put("a", item)
    queue.put("b", "b0")
    assert queue.take_where(lambda item: item.endswith("0")) == ["a0", "b0"]
    assert drain(queue) == ["a1"]
