"""The awkward moments of one replica, one by one."""

import pytest

from retinue.lifecycle.decide import decide
from retinue.lifecycle.moves import STOP_ANSWER_S
from retinue.terms.launch import StopSpec
from retinue.terms.record import replace
from retinue.terms.replica import (
    AnyEvent,
    CancelTimer,
    Decision,
    DependenciesReady,
    Exhausted,
    Exited,
    Launch,
    LaunchRefused,
    LivenessLost,
    NodeLost,
    OnExhausted,
    Phase,
    PlaceAgain,
    Policy,
    Publish,
    ReadinessChanged,
    Replica,
    RestartAsked,
    RestartPolicy,
    SetTimer,
    Started,
    StartupPassed,
    Stop,
    StopAsked,
    TimerFired,
    Withdraw,
)

POLICY = Policy(
    restart=RestartPolicy(backoff_s=10.0, jitter=0.0, limit=2, success=(0,), on_exhausted=OnExhausted.HOLD),
    stop=StopSpec(signal="INT", grace_s=30.0),
    startup_budget_s=1800.0,
)
MOVABLE = replace(POLICY, is_movable=True)
UP = (DependenciesReady(0), Started(1), StartupPassed(1), ReadinessChanged(1, is_ready=True))


def play(*events: AnyEvent, policy: Policy = POLICY, replica: Replica | None = None) -> Decision:
    """Give the events one second apart and return the last decision."""
    replica = replica or Replica(id="judge/0", policy=policy)
    for now_s, event in enumerate(events):
        decision = decide(replica, event, float(now_s))
        replica = decision.replica
    return decision


def test_exec_alone_publishes_nothing_when_there_are_probes():
    assert play(*UP[:2]).replica.phase is Phase.STARTING
    assert play(*UP[:2]).actions == (SetTimer(1, "startup", 1800.0),)
    assert play(*UP[:3]).actions == (CancelTimer("startup"),)
    assert play(*UP).actions == (Publish(1), SetTimer(1, "stable", 600.0))


def test_a_replica_without_probes_is_ready_when_started():
    decision = play(*UP[:2], policy=Policy(has_readiness=False))
    assert decision.replica.phase is Phase.READY
    assert Publish(1) in decision.actions


def test_without_a_startup_probe_readiness_counts_from_the_start():
    events = (DependenciesReady(0), Started(1), ReadinessChanged(1, is_ready=True))
    assert play(*events, policy=Policy()).replica.phase is Phase.READY


@pytest.mark.parametrize("event", [ReadinessChanged(1, is_ready=True), LivenessLost(1)])
def test_readiness_and_liveness_do_not_count_before_startup_passed(event):
    assert play(*UP[:2], event).actions == ()
    assert play(UP[0], event).replica.phase is Phase.STARTING


def test_a_lost_readiness_moves_traffic_and_restarts_nothing():
    decision = play(*UP, ReadinessChanged(1, is_ready=False))
    assert decision.replica.phase is Phase.UNREADY
    assert decision.actions == (Withdraw(1), CancelTimer("stable"))
    again = play(ReadinessChanged(1, is_ready=True), replica=decision.replica)
    assert again.actions == (Publish(1), SetTimer(1, "stable", 600.0))


def test_a_lost_liveness_stops_first_and_backs_off_only_when_it_is_gone():
    lost = play(*UP, LivenessLost(1))
    assert lost.actions[:2] == (Withdraw(1), CancelTimer("stable"))
    assert lost.actions[2] == Stop(1, "INT", 30.0, lost.reason)
    assert lost.actions[3] == SetTimer(1, "stop", 30.0 + STOP_ANSWER_S)
    gone = play(Exited(1, signal=9, was_asked=True), replica=lost.replica)
    assert gone.replica.phase is Phase.BACKOFF
    assert gone.replica.failures == 1
    assert SetTimer(1, "backoff", 10.0) in gone.actions


def test_a_spent_startup_budget_is_a_failure():
    decision = play(*UP[:2], TimerFired(1, "startup"), Exited(1, was_asked=True, signal=15))
    assert (decision.replica.phase, decision.replica.failures) == (Phase.BACKOFF, 1)


def test_a_startup_timer_that_was_queued_when_the_probe_passed_stops_nothing():
    assert play(*UP[:3], TimerFired(1, "startup")).actions == ()


def test_one_failure_more_than_allowed_is_the_end():
    crash = replace(play(*UP).replica, failures=2)
    decision = play(Exited(1, code=1), replica=crash)
    assert decision.replica.phase is Phase.FAILED
    assert decision.replica.is_exhausted
    assert decision.actions == (Withdraw(1), CancelTimer("stable"), Exhausted(OnExhausted.HOLD))
    assert play(Exited(1, code=1), replica=replace(crash, failures=1)).replica.phase is Phase.BACKOFF


def test_a_success_code_completes_and_a_no_restart_code_fails_at_once():
    done, never = play(*UP, Exited(1, code=0)), play(*UP, Exited(1, code=3))
    assert (done.replica.phase, done.replica.is_completed) == (Phase.STOPPED, True)
    assert (never.replica.phase, never.replica.is_exhausted) == (Phase.FAILED, False)
    assert Exhausted(OnExhausted.HOLD) in never.actions
    assert never.replica.failures == 0


def test_a_refusal_that_is_for_good_does_not_spend_the_budget():
    assert play(UP[0], LaunchRefused(1, "no such program", retryable=False)).replica.phase is Phase.FAILED
    decision = play(UP[0], LaunchRefused(1, "port taken"))
    assert (decision.replica.phase, decision.replica.failures) == (Phase.BACKOFF, 1)


def test_the_first_launch_is_no_restart_and_the_next_one_is():
    backoff = play(UP[0], Exited(1, code=1))
    assert backoff.replica.restarts == 0
    again = play(TimerFired(1, "backoff"), replica=backoff.replica)
    assert (again.replica.restarts, again.replica.incarnation) == (1, 2)
    assert again.actions == (CancelTimer("backoff"), Launch(2))


def test_processes_that_would_not_die_are_named_and_not_waited_for():
    decision = play(*UP, StopAsked("the run ends"), Exited(1, was_asked=True, left=(4711,)))
    assert decision.replica.phase is Phase.STOPPED
    assert "4711" in decision.reason


def test_stop_during_backoff_launches_nothing():
    decision = play(UP[0], Exited(1, code=1), StopAsked("the run ends"), TimerFired(1, "backoff"))
    assert (decision.replica.phase, decision.actions) == (Phase.STOPPED, ())


def test_stop_before_the_launch_was_answered_still_stops_it():
    decision = play(UP[0], StopAsked("the run ends", grace_s=5.0))
    assert Stop(1, "INT", 5.0, "the run ends") in decision.actions
    late = play(Started(1), replica=decision.replica)
    assert (late.replica.phase, late.replica.is_started) == (Phase.STOPPING, True)
    assert play(LaunchRefused(1, "no port"), replica=decision.replica).replica.phase is Phase.STOPPED


def test_a_grace_longer_than_the_policy_does_not_lengthen_the_stop():
    decision = play(*UP, StopAsked("drain", grace_s=500.0))
    assert Stop(1, "INT", 30.0, "drain") in decision.actions


@pytest.mark.parametrize("grace_s", [0.0, -3.0])
def test_a_deadline_that_has_passed_leaves_no_grace(grace_s):
    assert Stop(1, "INT", 0.0, "too late") in play(*UP, StopAsked("too late", grace_s=grace_s)).actions


def test_a_stop_while_stopping_for_relaunch_becomes_final():
    decision = play(*UP, LivenessLost(1), StopAsked("the run ends"), Exited(1, was_asked=True))
    assert decision.replica.phase is Phase.STOPPED
    assert decision.replica.failures == 0


def test_only_a_stop_that_ends_sooner_is_sent_again():
    stopping = play(*UP, StopAsked("drain")).replica
    assert stopping.kill_at_s == 34.0
    assert decide(stopping, StopAsked("deadline", grace_s=20.0), 20.0).actions == ()
    sooner = decide(stopping, StopAsked("deadline", grace_s=5.0), 20.0)
    assert sooner.actions == (Stop(1, "INT", 5.0, "deadline"), SetTimer(1, "stop", 5.0 + STOP_ANSWER_S))
    assert sooner.replica.kill_at_s == 25.0
    assert sooner.replica.since_s == stopping.since_s


def test_an_agent_that_never_answers_a_stop_is_not_waited_for():
    assert play(*UP, StopAsked("end"), TimerFired(1, "stop")).replica.phase is Phase.STOPPED
    assert play(*UP, LivenessLost(1), TimerFired(1, "stop")).replica.phase is Phase.BACKOFF
    late = play(*UP, LivenessLost(1), TimerFired(1, "stop"), Exited(1, code=1))
    assert (late.replica.failures, late.actions) == (1, ())


def test_an_exit_of_its_own_that_beats_our_stop_keeps_its_meaning():
    assert play(*UP, LivenessLost(1), Exited(1, code=0)).replica.is_completed
    assert play(*UP, LivenessLost(1), Exited(1, code=3)).replica.phase is Phase.FAILED
    assert play(*UP, LivenessLost(1), Exited(1, code=3, was_asked=True)).replica.phase is Phase.BACKOFF


def test_an_operators_restart_relaunches_at_once_and_forgives():
    ready = replace(play(*UP).replica, failures=2)
    asked = play(RestartAsked(1), replica=ready)
    assert asked.actions[0] == Withdraw(1)
    assert not asked.replica.is_failure
    gone = play(Exited(1, code=1, was_asked=True), replica=asked.replica)
    assert gone.actions == (CancelTimer("stop"), Launch(2))
    assert (gone.replica.failures, gone.replica.restarts) == (0, 1)


def test_a_restart_while_stopping_after_a_failure_takes_the_failure_back():
    decision = play(*UP, LivenessLost(1), RestartAsked(1), Exited(1, was_asked=True))
    assert (decision.replica.phase, decision.replica.failures) == (Phase.STARTING, 0)


@pytest.mark.parametrize("phase", [Phase.BACKOFF, Phase.FAILED, Phase.STOPPED])
def test_a_restart_leaves_every_phase_in_which_nothing_runs(phase):
    resting = Replica(id="judge/0", phase=phase, incarnation=4, failures=6, restarts=3)
    decision = play(RestartAsked(4), replica=resting)
    assert Launch(5) in decision.actions
    assert (decision.replica.failures, decision.replica.restarts) == (0, 4)


def test_a_restart_does_not_jump_over_dependencies_that_were_never_there():
    pending = play(RestartAsked(0))
    assert (pending.replica.phase, pending.actions) == (Phase.PENDING, ())
    hopeless = play(LaunchRefused(0, "needs corpus ready", retryable=False), RestartAsked(0))
    assert (hopeless.replica.phase, hopeless.actions) == (Phase.PENDING, ())


def test_a_lost_node_is_no_failure_of_the_replica():
    lost = play(*UP, NodeLost(1, "silent"), policy=MOVABLE)
    assert lost.actions == (Withdraw(1), CancelTimer("stable"), PlaceAgain(1))
    assert (lost.replica.phase, lost.replica.failures) == (Phase.PENDING, 0)
    again = play(DependenciesReady(1), replica=lost.replica)
    assert (again.actions, again.replica.restarts) == ((Launch(2),), 1)


def test_a_replica_that_may_not_move_fails_with_its_node():
    decision = play(*UP, NodeLost(1))
    assert decision.replica.phase is Phase.FAILED
    assert decision.actions == (Withdraw(1), CancelTimer("stable"), Exhausted(OnExhausted.HOLD))


def test_no_other_node_is_the_end_of_a_movable_replica():
    decision = play(*UP, NodeLost(1), LaunchRefused(1, "no node has 4 GPUs", retryable=False), policy=MOVABLE)
    assert decision.replica.phase is Phase.FAILED


@pytest.mark.parametrize("policy", [POLICY, MOVABLE])
def test_a_node_lost_during_teardown_ends_the_stop(policy):
    assert play(*UP, StopAsked("end"), NodeLost(1), policy=policy).replica.phase is Phase.STOPPED
    assert play(*UP, StopAsked("end"), Exited(1), NodeLost(1), policy=policy).actions == ()


def test_a_node_lost_during_backoff_does_not_launch_there():
    decision = play(UP[0], Exited(1, code=1), NodeLost(1), TimerFired(1, "backoff"), policy=MOVABLE)
    assert (decision.replica.phase, decision.actions) == (Phase.PENDING, ())


@pytest.mark.parametrize("number", [9, 40, 99])
def test_any_signal_number_can_be_said_in_words(number):
    assert play(*UP, Exited(1, signal=number)).replica.phase is Phase.BACKOFF
