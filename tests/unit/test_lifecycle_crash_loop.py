"""Budget and backoff: the curve as a table, and whole lives of crashes in virtual time."""

import heapq
import itertools
from collections.abc import Callable

import pytest

from retinue.lifecycle.budget import compute_backoff_s, compute_jitter, compute_wait_s, is_spent
from retinue.lifecycle.decide import decide
from retinue.terms.replica import (
    AnyEvent,
    CancelTimer,
    DependenciesReady,
    Exited,
    Launch,
    Phase,
    Policy,
    ReadinessChanged,
    Replica,
    RestartPolicy,
    SetTimer,
    Started,
    TimerFired,
)

Life = Callable[[int], list[tuple[float, AnyEvent]]]
"""Incarnation -> what happens to it: seconds after its launch, event."""

MINUTE_S = 60.0
DAY_S = 24 * 60 * MINUTE_S


@pytest.mark.parametrize(
    ("failures", "wait_s"),
    [(1, 10.0), (2, 20.0), (3, 40.0), (4, 80.0), (5, 160.0), (6, 300.0), (7, 300.0), (100, 300.0), (5000, 300.0)],
)
def test_the_backoff_is_kubelets_curve(failures, wait_s):
    assert compute_backoff_s(RestartPolicy(), failures) == wait_s


def test_a_first_wait_above_the_cap_is_capped():
    assert compute_backoff_s(RestartPolicy(backoff_s=900.0), 1) == 300.0
    assert compute_backoff_s(RestartPolicy(backoff_s=0.0), 4000) == 0.0


def test_jitter_only_lengthens_is_bounded_and_is_always_the_same():
    policy = RestartPolicy()
    waits = [compute_wait_s(policy, 1, f"judge/{k}", n) for k in range(20) for n in range(20)]
    assert min(waits) >= 10.0
    assert max(waits) < 12.5
    assert waits == [compute_wait_s(policy, 1, f"judge/{k}", n) for k in range(20) for n in range(20)]
    assert compute_wait_s(RestartPolicy(jitter=0.0), 3, "judge/0", 3) == 40.0


def test_replicas_that_fall_together_do_not_come_back_together():
    by_replica = {compute_jitter(f"judge/{k}", 1) for k in range(200)}
    by_launch = {compute_jitter("judge/0", n) for n in range(200)}
    for values in (by_replica, by_launch):
        assert len(values) == 200
        assert all(any(tenth <= value * 10 < tenth + 1 for value in values) for tenth in range(10))


@pytest.mark.parametrize(("failures", "spent"), [(0, False), (5, False), (6, True)])
def test_the_limit_is_what_is_allowed_and_the_next_one_spends_it(failures, spent):
    assert is_spent(RestartPolicy(limit=5), failures) is spent
    assert is_spent(RestartPolicy(limit=0), 1)


def live(policy: Policy, life: Life, until_s: float) -> list[tuple[float, Replica]]:
    """Run one replica in virtual time; return it as it was after every phase change."""
    replica, history, order = Replica(id="judge/0", policy=policy), [], itertools.count()
    queue: list[tuple[float, int, AnyEvent]] = [(0.0, next(order), DependenciesReady(0))]
    armed: dict[str, int] = {}
    while queue:
        now_s, number, event = heapq.heappop(queue)
        if now_s > until_s:
            break
        if isinstance(event, TimerFired) and armed.get(event.timer) != number:
            continue
        decision = decide(replica, event, now_s)
        if decision.replica.phase is not replica.phase:
            history.append((now_s, decision.replica))
        replica = decision.replica
        for action in decision.actions:
            match action:
                case Launch(incarnation=incarnation):
                    for after_s, happening in life(incarnation):
                        heapq.heappush(queue, (now_s + after_s, next(order), happening))
                case SetTimer(incarnation=incarnation, timer=timer, after_s=after_s):
                    armed[timer] = next(order)
                    heapq.heappush(queue, (now_s + after_s, armed[timer], TimerFired(incarnation, timer)))
                case CancelTimer(timer=timer):
                    armed.pop(timer, None)
    return history


def crash_after(ready_s: float) -> Life:
    return lambda n: [
        (1.0, Started(n)),
        (30.0, ReadinessChanged(n, is_ready=True)),
        (30.0 + ready_s, Exited(n, code=1)),
    ]


def find_crashes(history: list[tuple[float, Replica]]) -> list[int]:
    return [replica.failures for _, replica in history if replica.phase in (Phase.BACKOFF, Phase.FAILED)]


def test_a_crash_every_four_minutes_spends_the_budget_although_it_is_slow():
    policy = Policy(restart=RestartPolicy(limit=5, stable_for_s=10 * MINUTE_S))
    history = live(policy, crash_after(4 * MINUTE_S), DAY_S)
    assert find_crashes(history) == [1, 2, 3, 4, 5, 6]
    last_s, last = history[-1]
    assert (last.phase, last.is_exhausted, last.incarnation, last.restarts) == (Phase.FAILED, True, 6, 5)
    assert last_s > 6 * 4 * MINUTE_S


def test_a_replica_that_was_stable_is_forgiven_every_time():
    policy = Policy(restart=RestartPolicy(limit=2, stable_for_s=10 * MINUTE_S))
    history = live(policy, crash_after(11 * MINUTE_S), DAY_S)
    crashes = find_crashes(history)
    assert len(crashes) > 100
    assert set(crashes) == {1}


def test_failures_since_the_last_stable_period_count_and_those_before_do_not():
    policy = Policy(restart=RestartPolicy(limit=3, stable_for_s=10 * MINUTE_S))
    history = live(policy, lambda n: crash_after(20 * MINUTE_S if n == 3 else 1.0)(n), DAY_S)
    assert find_crashes(history) == [1, 2, 1, 2, 3, 4]


def test_readiness_that_flaps_is_never_a_stable_period():
    def life(n: int) -> list[tuple[float, AnyEvent]]:
        flaps = [(2.0 + 300.0 * k, ReadinessChanged(n, is_ready=k % 2 == 0)) for k in range(8)]
        return [(1.0, Started(n)), *flaps, (2400.0, Exited(n, code=1))]

    history = live(Policy(restart=RestartPolicy(limit=2, stable_for_s=10 * MINUTE_S)), life, DAY_S)
    assert find_crashes(history) == [1, 2, 3]


def test_a_stable_timer_left_over_from_an_earlier_ready_period_forgives_nothing():
    ready = Replica(id="judge/0", phase=Phase.READY, incarnation=1, failures=2, since_s=500.0, is_started=True)
    early = decide(ready, TimerFired(1, "stable"), 600.0)
    assert early.replica.failures == 2
    assert early.actions == (SetTimer(1, "stable", 500.0),)
    assert decide(ready, TimerFired(1, "stable"), 1100.0).replica.failures == 0
    assert decide(ready, TimerFired(1, "stable"), 1099.99).replica.failures == 0


def test_waits_between_launches_follow_the_curve_in_a_whole_life():
    policy = Policy(restart=RestartPolicy(limit=7, jitter=0.0))
    history = live(policy, lambda n: [(1.0, Exited(n, code=1))], DAY_S)
    gone = [now_s for now_s, replica in history if replica.phase is Phase.BACKOFF]
    launched = [now_s for now_s, replica in history if replica.phase is Phase.STARTING][1:]
    waits = [b - a for a, b in zip(gone, launched, strict=True)]
    assert waits == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
