"""Every kind of replica against every kind of event: something sensible, said in words, and never an error."""

import itertools
from typing import get_args

import pytest

from retinue.lifecycle.decide import decide
from retinue.lifecycle.diagram import NOW_S, build_events, build_replicas
from retinue.lifecycle.moves import find_timers
from retinue.terms.record import replace, to_plain
from retinue.terms.replica import (
    AnyEvent,
    CancelTimer,
    Decision,
    Exhausted,
    Launch,
    OnExhausted,
    Phase,
    PlaceAgain,
    Policy,
    Publish,
    Replica,
    RestartPolicy,
    SetTimer,
    StopAsked,
    Withdraw,
)
from retinue.terms.replica import Stop as StopAction

POLICIES = {
    "probed": Policy(startup_budget_s=60.0, restart=RestartPolicy(success=(0,)), is_movable=True),
    "bare": Policy(has_readiness=False),
    "startup only": Policy(startup_budget_s=60.0, has_readiness=False, is_movable=True),
    "small budget": Policy(restart=RestartPolicy(limit=1, on_exhausted=OnExhausted.HOLD)),
}
EVENT_NAMES = tuple(build_events(0))
KINDS = tuple(build_replicas())
GRID = tuple(itertools.product(POLICIES, KINDS))


def _ask(policy: str, kind: str, name: str) -> tuple[Replica, AnyEvent, Decision]:
    replica = build_replicas(POLICIES[policy])[kind]
    event = build_events(replica.incarnation)[name]
    return replica, event, decide(replica, event, NOW_S)


def _of(decision: Decision, kind: type) -> list:
    return [action for action in decision.actions if isinstance(action, kind)]


def test_the_grid_holds_every_phase_and_every_event():
    assert {replica.phase for replica in build_replicas().values()} == set(Phase)
    assert {type(event) for event in build_events(0).values()} == set(get_args(AnyEvent))


@pytest.mark.parametrize(("policy", "kind"), GRID)
def test_every_pair_has_an_answer_that_explains_itself(policy, kind):
    for name in EVENT_NAMES:
        replica, _, decision = _ask(policy, kind, name)
        assert decision.reason.strip()
        assert decision.replica.id == replica.id
        assert decision.replica.policy == replica.policy
        if decision.replica.phase is not replica.phase:
            assert decision.replica.since_s == NOW_S
            assert decision.replica.reason == decision.reason
        else:
            assert decision.replica.since_s == replica.since_s


@pytest.mark.parametrize(("policy", "kind"), GRID)
def test_flags_belong_to_their_phase_and_do_not_outlive_it(policy, kind):
    for name in EVENT_NAMES:
        after = _ask(policy, kind, name)[2].replica
        if after.phase is not Phase.STOPPING:
            assert not after.wants_relaunch
            assert not after.is_failure
            assert after.kill_at_s is None
        if after.phase in (Phase.PENDING, Phase.BACKOFF, Phase.STOPPED, Phase.FAILED):
            assert not after.is_started
            assert not after.is_startup_passed
        if after.phase in (Phase.READY, Phase.UNREADY):
            assert after.is_started
            assert after.is_startup_passed
        assert after.phase is Phase.FAILED or not after.is_exhausted
        assert after.phase is Phase.STOPPED or not after.is_completed
        assert after.wants_relaunch or not after.is_failure
        assert after.failures <= after.policy.restart.limit + (after.phase is Phase.FAILED)


@pytest.mark.parametrize(("policy", "kind"), GRID)
def test_actions_fit_the_change_they_belong_to(policy, kind):
    for name in EVENT_NAMES:
        replica, _, decision = _ask(policy, kind, name)
        before, after = replica.phase, decision.replica.phase
        number = decision.replica.incarnation
        was, is_now = before is Phase.READY, after is Phase.READY

        assert [action.incarnation for action in _of(decision, Launch)] == (
            [number] if number != replica.incarnation else []
        )
        assert number - replica.incarnation in (0, 1)
        assert len(_of(decision, Publish)) == (is_now and not was)
        assert len(_of(decision, Withdraw)) == (was and not is_now)
        assert len(_of(decision, Exhausted)) == (after is Phase.FAILED and before is not Phase.FAILED)
        assert not _of(decision, PlaceAgain) or (after is Phase.PENDING and replica.policy.is_movable)
        assert not _of(decision, StopAction) or after is Phase.STOPPING
        if after is Phase.STOPPING and before is not Phase.STOPPING:
            assert len(_of(decision, StopAction)) == 1
        if _of(decision, Withdraw):
            assert isinstance(decision.actions[0], Withdraw)
        for action in decision.actions:
            assert getattr(action, "incarnation", number) == number


@pytest.mark.parametrize(("policy", "kind"), GRID)
def test_a_phase_that_ends_takes_its_timers_and_the_next_one_arms_its_own(policy, kind):
    for name in EVENT_NAMES:
        replica, event, decision = _ask(policy, kind, name)
        armed = set(find_timers(replica)) - {getattr(event, "timer", "")}
        for action in decision.actions:
            if isinstance(action, CancelTimer):
                armed.discard(action.timer)
            if isinstance(action, SetTimer):
                assert action.after_s >= 0
                armed.add(action.timer)
        assert armed | {"stable"} == set(find_timers(decision.replica)) | {"stable"}
        assert "stable" not in armed or decision.replica.phase is Phase.READY
        if replica.phase is not Phase.READY and decision.replica.phase is Phase.READY:
            assert "stable" in armed


@pytest.mark.parametrize("distance", [-1, 1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_incarnation_changes_nothing(kind, distance):
    replica = build_replicas()[kind]
    events = build_events(replica.incarnation + distance).values()
    about_an_incarnation = [event for event in events if not isinstance(event, StopAsked)]
    assert len(about_an_incarnation) == len(EVENT_NAMES) - 2
    for event in about_an_incarnation:
        decision = decide(replica, event, NOW_S)
        assert decision.replica == replica, event
        assert decision.actions == (), event
        assert decision.reason.startswith("stale"), event


@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_is_the_same_every_time(kind):
    replica = build_replicas()[kind]
    for event in build_events(replica.incarnation).values():
        assert to_plain(decide(replica, event, NOW_S)) == to_plain(decide(replace(replica), event, NOW_S))
