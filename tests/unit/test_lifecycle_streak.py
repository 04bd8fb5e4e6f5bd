"""Kubernetes' probe semantics, narrated verdict by verdict."""

import pytest

from retinue.lifecycle.streak import ProbeState, build_probe_state, build_streak, observe
from retinue.terms.launch import ProbeKind, ProbeSpec
from retinue.terms.replica import LivenessLost, ReadinessChanged, StartupPassed, Verdict

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN
STARTUP, READINESS, LIVENESS = ProbeKind.STARTUP, ProbeKind.READINESS, ProbeKind.LIVENESS


def narrate(spec: ProbeSpec, *verdicts: Verdict) -> list[Verdict | None]:
    """Observe one verdict after another; return what changed at each."""
    streak, changes = build_streak(spec), []
    for now_s, verdict in enumerate(verdicts):
        streak, change = observe(streak, verdict, float(now_s))
        changes.append(change)
    return changes


def test_startup_starts_unknown_readiness_failed_liveness_passed():
    assert [build_streak(ProbeSpec(kind)).settled for kind in (STARTUP, READINESS, LIVENESS)] == [UNKNOWN, FAIL, PASS]


def test_1_failing_2_failing_3_failure():
    readiness = ProbeSpec(READINESS, failures=3)
    assert narrate(readiness, PASS, FAIL, FAIL, FAIL) == [PASS, None, None, FAIL]
    assert narrate(ProbeSpec(LIVENESS, failures=3), FAIL, FAIL, FAIL) == [None, None, FAIL]


def test_a_success_in_between_begins_the_row_again():
    readiness = ProbeSpec(READINESS, failures=3)
    assert narrate(readiness, PASS, FAIL, FAIL, PASS, FAIL, FAIL, FAIL) == [PASS, None, None, None, None, None, FAIL]


def test_readiness_comes_back_only_after_its_successes_in_a_row():
    readiness = ProbeSpec(READINESS, failures=1, successes=2)
    assert narrate(readiness, PASS, FAIL, PASS, PASS) == [None, None, None, PASS]
    assert narrate(readiness, PASS, PASS, FAIL, PASS, PASS) == [None, PASS, FAIL, None, PASS]


def test_only_changes_are_told():
    readiness = ProbeSpec(READINESS, failures=2)
    assert narrate(readiness, FAIL, FAIL, FAIL) == [None, None, None]
    assert narrate(readiness, PASS, PASS, PASS) == [PASS, None, None]


def test_a_probe_that_could_not_be_asked_moves_nothing_not_even_the_row():
    liveness = ProbeSpec(LIVENESS, failures=3)
    assert narrate(liveness, FAIL, UNKNOWN, FAIL, UNKNOWN, UNKNOWN, FAIL) == [None, None, None, None, None, FAIL]
    assert narrate(liveness, *[UNKNOWN] * 50) == [None] * 50


def test_startup_and_liveness_need_one_success_whatever_the_file_says():
    assert narrate(ProbeSpec(STARTUP, successes=5), PASS) == [PASS]
    assert narrate(ProbeSpec(LIVENESS, failures=2, successes=5), FAIL, PASS, FAIL, FAIL) == [None, None, None, FAIL]


def test_after_a_lost_liveness_it_holds_until_a_new_incarnation():
    streak = build_streak(ProbeSpec(LIVENESS, failures=1))
    streak, _ = observe(streak, FAIL, 5.0)
    assert (streak.is_held, streak.since_s) == (True, 5.0)
    for verdict in (PASS, FAIL, PASS):
        assert observe(streak, verdict, 6.0) == (streak, None)


# --- the probes of one incarnation ---------------------------------------------------

SPECS = (
    ProbeSpec(STARTUP, period_s=5.0),
    ProbeSpec(READINESS, period_s=5.0, failures=3, successes=2),
    ProbeSpec(LIVENESS, period_s=10.0, failures=2, initial_delay_s=300.0),
)


def ask(state: ProbeState, kind: ProbeKind, now_s: float, *verdicts: Verdict) -> tuple[ProbeState, list]:
    """Ask and answer a probe at the given time, as often as there are verdicts."""
    told: list = []
    for verdict in verdicts:
        state, changes = state.note_asked(kind, now_s).observe(kind, verdict, now_s)
        told += changes
    return state, told


def test_startup_gates_the_other_two():
    state = build_probe_state(SPECS, incarnation=3, now_s=100.0)
    assert state.due(100.0) == (STARTUP,)
    assert state.due(9000.0) == (STARTUP,)
    state, told = ask(state, STARTUP, 110.0, FAIL, FAIL, FAIL, FAIL, PASS)
    assert told == [StartupPassed(3)]
    assert state.due(110.0) == (READINESS,)
    assert not state.is_ready


def test_an_answer_of_a_gated_probe_is_thrown_away():
    state = build_probe_state(SPECS, 3, 0.0)
    state, told = ask(state, READINESS, 1.0, PASS, PASS, PASS)
    assert told == []
    state, told = ask(state, STARTUP, 2.0, PASS)
    state, told = ask(state, READINESS, 3.0, PASS)
    assert told == [], "what was answered before startup passed must not count"


def test_a_startup_probe_that_fails_for_ever_tells_nothing_and_is_asked_on():
    state = build_probe_state(SPECS, 1, 0.0)
    state, told = ask(state, STARTUP, 0.0, *[FAIL] * 500)
    assert told == []
    assert state.due(5.0) == (STARTUP,)


def test_startup_is_asked_no_more_once_it_passed():
    state, _ = ask(build_probe_state(SPECS, 1, 0.0), STARTUP, 0.0, PASS)
    assert STARTUP not in state.due(1e6)
    assert ask(state, STARTUP, 7.0, FAIL, PASS)[1] == []


def test_the_initial_delay_counts_from_the_start_of_the_incarnation():
    state, _ = ask(build_probe_state(SPECS, 1, 100.0), STARTUP, 250.0, PASS)
    assert state.due(399.9) == (READINESS,)
    assert state.due(400.0) == (READINESS, LIVENESS)


@pytest.mark.parametrize("kind", [READINESS, LIVENESS])
def test_without_a_startup_probe_the_others_are_asked_at_once(kind):
    state = build_probe_state((ProbeSpec(kind),), 1, 50.0)
    assert state.is_startup_passed
    assert state.due(50.0) == (kind,)


def test_readiness_and_liveness_tell_what_changed_and_why():
    state, _ = ask(build_probe_state(SPECS, 2, 0.0), STARTUP, 0.0, PASS)
    state, told = ask(state, READINESS, 1.0, PASS, PASS)
    assert [(change.incarnation, change.is_ready) for change in told] == [(2, True)]
    assert state.is_ready
    state, told = state.observe(READINESS, FAIL, 2.0, "timeout after 1 s")
    assert told == ()
    state, _ = state.observe(READINESS, FAIL, 3.0, "timeout after 1 s")
    state, told = state.observe(READINESS, FAIL, 4.0, "timeout after 1 s")
    assert isinstance(told[0], ReadinessChanged)
    assert not told[0].is_ready
    assert "timeout after 1 s" in told[0].cause
    state, told = ask(state, LIVENESS, 400.0, FAIL, FAIL)
    assert isinstance(told[0], LivenessLost)
    assert told[0].incarnation == 2
    assert LIVENESS not in state.due(1e6)
    assert READINESS in state.due(1e6)


def test_a_probe_on_its_way_is_not_asked_twice():
    state = build_probe_state((ProbeSpec(READINESS, period_s=5.0),), 1, 0.0)
    asked = state.note_asked(READINESS, 0.0)
    assert asked.due(100.0) == ()
    assert asked.next_due_s() is None
    answered, _ = asked.observe(READINESS, PASS, 1.0)
    assert answered.next_due_s() == 5.0


def test_an_answer_later_than_the_period_is_followed_at_once():
    state = build_probe_state((ProbeSpec(READINESS, period_s=5.0),), 1, 0.0).note_asked(READINESS, 0.0)
    assert state.observe(READINESS, FAIL, 12.0)[0].due(12.0) == (READINESS,)


def test_an_unaskable_probe_is_asked_again_a_period_later():
    state = build_probe_state((ProbeSpec(LIVENESS, period_s=10.0, failures=1),), 1, 0.0)
    state, told = ask(state, LIVENESS, 3.0, UNKNOWN)
    assert (told, state.next_due_s()) == ([], 13.0)


def test_a_replica_without_probes_waits_for_nothing():
    state = build_probe_state((), 1, 0.0)
    assert (state.due(5.0), state.next_due_s(), state.is_ready) == ((), None, True)


def test_a_new_agent_tells_the_first_row_of_an_adopted_replica_whatever_it_says():
    state = build_probe_state(SPECS, 4, 0.0, is_startup_passed=True, is_readopted=True)
    assert ask(state, READINESS, 0.0, FAIL, FAIL, FAIL)[1][0].is_ready is False
    assert ask(state, READINESS, 0.0, PASS, PASS)[1][0].is_ready is True
    fresh = build_probe_state(SPECS, 4, 0.0, is_startup_passed=True)
    assert ask(fresh, READINESS, 0.0, FAIL, FAIL, FAIL)[1] == []
