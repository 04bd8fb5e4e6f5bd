"""The whole controller in virtual time: from joining to the verdict."""

import pytest

from retinue.plan.records import Dependency, TrainerPlan
from retinue.supervise.ending import Cause
from retinue.supervise.state import RunPhase, TrainerState
from retinue.terms.launch import StopSpec
from retinue.terms.replica import OnExhausted, Phase, Policy, RestartPolicy
from support.world import Script, World, build_test_plan, service


def start_world(**fields: object) -> World:
    world = World(**fields)  # type: ignore[arg-type]
    world.start()
    return world


def test_a_run_ends_with_the_trainers_exit_code() -> None:
    world = start_world(plan=build_test_plan([service("judge", 2)]))
    world.trainer_code = 7
    assert world.run_to_end() == 7
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.TRAINER


def test_the_trainer_starts_only_when_all_services_are_ready() -> None:
    world = start_world(
        plan=build_test_plan([service("judge"), service("corpus")]), scripts={"corpus": [Script(ready_s=50.0)]}
    )
    world.run_for(40.0)
    assert world.trainer is None
    world.run_until(lambda: world.trainer is not None)
    assert world.phase("corpus/0") is Phase.READY


def test_a_dependant_waits_for_its_dependency() -> None:
    needs = (Dependency("judge", "ready"),)
    world = start_world(
        plan=build_test_plan([service("user", after=needs), service("judge")], lanes=[("judge",), ("user",)])
    )
    world.run_until(lambda: "user/0#1" in world.launched)
    assert world.phase("judge/0") is Phase.READY


def test_services_stop_callers_first_and_the_trainer_before_all() -> None:
    needs = (Dependency("judge", "ready"),)
    plan = build_test_plan([service("judge"), service("user", after=needs)], lanes=[("judge",), ("user",)])
    world = start_world(plan=plan, trainer_s=None)
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    world.signal("TERM")
    assert world.run_to_end() == 143
    stops = [note for note in world.notes if "StopAsked" in note or "TrainerExited" in note or "StopTold" in note]
    assert [note.split()[1] for note in stops] == ["trainer", "user/0", "judge/0"]


def test_a_crash_is_relaunched_after_backoff_and_published_again() -> None:
    world = start_world(
        plan=build_test_plan([service("judge")]), scripts={"judge": [Script(exits_s=5.0), Script()]}, trainer_s=60.0
    )
    world.run_until(lambda: world.phase("judge/0") is Phase.BACKOFF)
    world.run_for(0.01)
    assert world.nodes["n1"].published["judge"] == set()
    world.run_until(lambda: world.nodes["n1"].published["judge"] == {("judge/0", 2)})
    assert world.run_to_end() == 0


def test_a_spent_budget_before_the_trainer_is_exit_5() -> None:
    world = start_world(
        plan=build_test_plan([service("judge")]), scripts={"judge": [Script(ready_s=None, exits_s=1.0)]}
    )
    assert world.run_to_end() == 5
    assert world.trainer is None
    assert world.launched == [f"judge/0#{n}" for n in (1, 2, 3, 4)]


def test_a_dependant_of_a_failed_service_can_never_start() -> None:
    needs = (Dependency("judge", "ready"),)
    plan = build_test_plan([service("judge"), service("user", after=needs)], lanes=[("judge",), ("user",)])
    world = start_world(plan=plan, scripts={"judge": [Script(refuses="no such file", is_retryable=False)]})
    assert world.run_to_end() == 5
    assert not any(key.startswith("user") for key in world.launched)


def test_a_degraded_service_lets_the_run_go_on() -> None:
    world = start_world(
        plan=build_test_plan([service("judge")]),
        scripts={"judge": [Script(ready_s=0.1, exits_s=20.0)]},
        trainer_s=300.0,
    )
    assert world.run_to_end() == 0
    assert world.phase("judge/0") is Phase.FAILED


def test_fail_run_ends_a_running_trainer_with_5() -> None:
    policy = Policy(
        restart=RestartPolicy(backoff_s=1.0, limit=0, on_exhausted=OnExhausted.FAIL_RUN), stop=StopSpec("TERM", 1.0)
    )
    plan = build_test_plan([service("judge", on_exhausted=OnExhausted.FAIL_RUN)], policy=policy)
    world = start_world(plan=plan, scripts={"judge": [Script(exits_s=20.0)]}, trainer_s=None)
    assert world.run_to_end() == 5
    assert world.trainer is not None
    assert world.trainer["signal"] == 15


def test_hold_waits_for_an_operator_and_then_fails_the_run() -> None:
    policy = Policy(restart=RestartPolicy(limit=0, on_exhausted=OnExhausted.HOLD))
    plan = build_test_plan([service("judge", on_exhausted=OnExhausted.HOLD)], policy=policy, hold_s=900.0)
    world = start_world(plan=plan, scripts={"judge": [Script(exits_s=20.0)]}, trainer_s=None)
    world.run_until(lambda: world.phase("judge/0") is Phase.FAILED)
    failed_at = world.now
    assert world.run_to_end() == 5
    assert 900.0 <= world.now - failed_at < 910.0


def test_a_trainer_that_ignores_its_signal_is_killed_after_its_grace() -> None:
    plan = build_test_plan([service("judge")], trainer=TrainerPlan(group="all", argv=("t",), grace_s=30.0))
    world = start_world(plan=plan, trainer_s=None)
    world.trainer_stop_s = 1e6
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING and world.trainer is not None)
    world.run_for(1.0)
    world.signal("TERM")
    began = world.now
    assert world.run_to_end() == 137
    assert 30.0 <= world.now - began < 35.0


def test_a_second_signal_shortens_every_grace() -> None:
    plan = build_test_plan([service("judge")], policy=Policy(stop=StopSpec("TERM", 300.0)))
    world = start_world(plan=plan, scripts={"judge": [Script(stop_s=1e6)]}, trainer_s=None)
    world.trainer_stop_s = 1e6
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    world.run_for(1.0)
    world.signal("INT", 1)
    world.run_for(1.0)
    world.signal("INT", 2)
    began = world.now
    world.run_to_end()
    assert world.now - began < 10.0


def test_a_terminal_interrupt_is_not_sent_to_the_trainer_twice() -> None:
    world = start_world(plan=build_test_plan([service("judge")]), trainer_s=None)
    world.run_until(lambda: world.trainer is not None)
    world.run_for(1.0)
    world.signal("INT", 1, is_from_terminal=True)
    world.after(0.3, lambda: world.end_trainer(None, 2))
    assert world.run_to_end() == 130
    assert not any(order["op"] == "signal_trainer" for order in world.orders)


@pytest.mark.parametrize("moment_s", [0.2, 0.7, 1.2, 2.5, 5.0])
def test_a_signal_in_any_phase_ends_everything(moment_s: float) -> None:
    scripts = {"judge": [Script(ready_s=None, exits_s=1.0), Script()]}
    world = start_world(plan=build_test_plan([service("judge", 2)]), scripts=scripts, trainer_s=None)
    world.run_for(moment_s)
    world.signal("TERM")
    assert world.run_to_end() == 143


@pytest.mark.parametrize("moment_s", [0.2, 0.55, 0.7, 1.2, 1.75, 2.5, 5.0, 7.0, 11.7, 11.9, 12.2])
def test_a_controller_killed_at_any_moment_repeats_and_loses_nothing(moment_s: float) -> None:
    scripts = {"judge": [Script(exits_s=5.0), Script()]}
    world = start_world(plan=build_test_plan([service("judge", 2)]), scripts=scripts)
    world.run_for(moment_s)
    world.kill_controller()
    assert world.run_to_end() == 0
    assert len(world.launched) == len(set(world.launched))


def test_a_controller_killed_between_deciding_on_the_trainer_and_ordering_it_orders_it_again() -> None:
    world = start_world(plan=build_test_plan([service("judge")]))
    world.run_until(lambda: world.run.state.trainer is TrainerState.ASKED)
    assert world.trainer is None
    world.kill_controller()
    assert world.run_to_end() == 0
    assert world.trainer is not None


def test_a_stop_between_deciding_on_the_trainer_and_ordering_it_starts_none_later() -> None:
    world = start_world(plan=build_test_plan([service("judge")]), trainer_s=None)
    world.files_s = 1e6
    world.run_until(lambda: world.run.state.trainer is TrainerState.ASKED)
    world.signal("TERM")
    world.run_for(1.0)
    world.kill_controller()
    assert world.run_to_end() == 143
    assert world.trainer is None


def test_a_controller_restart_changes_no_incarnation() -> None:
    world = start_world(plan=build_test_plan([service("judge", 3)]), trainer_s=60.0)
    world.run_until(lambda: world.trainer is not None)
    world.run_for(3.0)
    world.kill_controller()
    world.run_to_end()
    assert sorted(world.launched) == ["judge/0#1", "judge/1#1", "judge/2#1"]


def test_a_port_that_one_node_refuses_is_given_up_by_all() -> None:
    world = World(build_test_plan([service("judge")], nodes=("n1", "n2")))
    world.nodes["n2"].refused_ports = {21001}
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.STARTING)
    assert {node.gateway_port for node in world.nodes.values()} == {21002}


def test_all_ports_refused_is_exit_5_and_names_the_holder() -> None:
    world = World(build_test_plan([service("judge")]))
    world.nodes["n1"].refused_ports = set(world.gateway_ports)
    world.start()
    assert world.run_to_end() == 5
    assert world.run.state.ending is not None
    assert "stranger" in world.run.state.ending.text


def test_the_loss_of_the_last_node_fails_the_run() -> None:
    world = start_world(plan=build_test_plan([service("judge")]), trainer_s=None)
    world.run_until(lambda: world.trainer is not None)
    world.run_for(1.0)
    world.nodes["n1"].alive.clear()
    world.nodes["n1"].is_connected = False
    assert world.run_to_end() == 5
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.NODE_LOST


def test_a_deadline_begins_the_stop_in_time() -> None:
    plan = build_test_plan([service("judge")], end_utc=1_000_000.0 + 600.0, drain_s=120.0)
    world = start_world(plan=plan, trainer_s=None)
    world.run_to_end()
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.DEADLINE
    assert 480.0 <= world.now - 1000.0 < 600.0


def test_a_simulated_day_of_crashes_is_instant_and_keeps_the_invariants() -> None:
    policy = Policy(restart=RestartPolicy(backoff_s=10.0, limit=5, stable_for_s=600.0), stop=StopSpec("TERM", 5.0))
    plan = build_test_plan([service("judge", 4)], policy=policy)
    world = start_world(plan=plan, scripts={"judge": [Script(exits_s=3600.0)]}, trainer_s=86_400.0)
    assert world.run_to_end() == 0
    assert len(world.launched) > 80
