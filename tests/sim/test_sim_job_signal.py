"""Slurm signals every process of the job: in whatever order we hear of it, it is one stop and no failure of ours."""

import itertools
from collections.abc import Callable

import pytest

from retinue.supervise.ending import Cause
from retinue.supervise.happenings import NodeReported, TermHeard
from retinue.supervise.state import RunPhase
from retinue.terms.launch import StopSpec
from retinue.terms.replica import Exited, OnExhausted, Phase, Policy, RestartPolicy
from support.world import World, build_test_plan, service

NODES = ("n1", "n2")
FRAIL = Policy(restart=RestartPolicy(backoff_s=0.0, limit=0, jitter=0.0), stop=StopSpec("TERM", 5.0))
"""One failure of any replica is the end of the run."""


def start_world(job_id: str | None = "7", **fields: object) -> World:
    judge = service("judge", 2, on_exhausted=OnExhausted.FAIL_RUN)
    world = World(build_test_plan([judge], NODES, FRAIL, job_id=job_id, **fields), trainer_s=None)
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING and world.trainer is not None)
    world.run_for(1.0)
    return world


def end_service(world: World, code: int | None = None, signal: int | None = 15) -> None:
    world.nodes["n1"].exit("judge/0", 1, Exited(1, code=code, signal=signal))


def report_node(world: World, node: str, asked_by: str = "SIGTERM") -> None:
    world.nodes[node].alive.clear()
    world.nodes[node].is_connected = False
    report = {"retinue_node": node, "clean": True, "rung": "namespace", "note": "asked", "asked_by": asked_by}
    world.post(NodeReported(node, report))
    if not any(other.is_connected for other in world.nodes.values()):
        world.after(0.1, lambda: world.end_node(node))


def end_trainer(world: World) -> None:
    world.end_trainer(None, 15)


HEARD: dict[str, Callable[[World], None]] = {
    "service": end_service,
    "stub": lambda world: world.signal("TERM"),
    "controller": lambda world: world.post(TermHeard()),
    "node": lambda world: report_node(world, "n2"),
}


@pytest.mark.parametrize("order", list(itertools.permutations(HEARD)), ids="-".join)
def test_in_whatever_order_it_is_heard_of_it_is_the_signal_and_nothing_is_launched_again(
    order: tuple[str, ...],
) -> None:
    world = start_world()
    for name in order:
        HEARD[name](world)
        world.run_for(0.2)
    end_trainer(world)
    report_node(world, "n1")
    assert world.run_to_end() == 143
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.SIGNAL
    assert world.launched == ["judge/0#1", "judge/1#1"]
    assert world.phase("judge/0") is world.phase("judge/1") is Phase.STOPPED


@pytest.mark.parametrize("end", [{"signal": 15}, {"signal": None, "code": 143}, {"signal": None, "code": 0}])
def test_without_a_stop_an_end_by_term_is_a_failure_two_seconds_later(end: dict[str, int | None]) -> None:
    world = start_world()
    end_service(world, **end)
    world.run_for(1.5)
    assert world.run.state.ending is None
    world.run_to_end()
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.FAIL_RUN


@pytest.mark.parametrize("end", [{"signal": 9}, {"signal": None, "code": 1}])
def test_any_other_end_is_a_failure_at_once(end: dict[str, int | None]) -> None:
    world = start_world()
    end_service(world, **end)
    world.run_for(0.1)
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.FAIL_RUN
    world.run_to_end()


def test_outside_a_job_nobody_signals_all_and_nothing_is_held_back() -> None:
    world = start_world(job_id=None)
    end_service(world)
    world.run_for(0.1)
    assert world.run.state.ending is not None
    world.run_to_end()


def test_an_end_by_term_long_after_the_stop_is_the_services_own() -> None:
    world = start_world()
    world.trainer_stop_s = 30.0
    world.signal("TERM")
    world.run_for(6.0)
    end_service(world)
    world.run_for(0.1)
    assert world.phase("judge/0") is Phase.FAILED
    world.run_to_end()


def test_a_term_on_every_node_is_a_stop_though_the_stub_had_none() -> None:
    world = start_world()
    report_node(world, "n1")
    world.run_for(0.3)
    assert world.run.state.ending is None
    report_node(world, "n2")
    world.run_for(0.3)
    end_trainer(world)
    assert world.run_to_end() == 143
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.SIGNAL
    assert world.launched == ["judge/0#1", "judge/1#1"]


def test_a_term_on_one_node_of_the_trainer_is_the_loss_of_that_node() -> None:
    world = start_world()
    report_node(world, "n1")
    world.run_for(2.5)
    assert world.run.state.ending is not None
    assert world.run.state.ending.cause is Cause.NODE_LOST
    world.run_to_end()


def test_a_term_to_the_controller_alone_ends_nothing() -> None:
    world = start_world()
    world.post(TermHeard())
    world.run_for(30.0)
    assert world.run.state.ending is None


def test_a_trainer_that_has_had_its_term_with_all_others_is_not_sent_another() -> None:
    world = start_world()
    world.nodes["n1"].tasks = 1
    world.signal("TERM")
    world.post(TermHeard())
    world.run_for(1.0)
    assert world.nodes["n1"].told == []
    assert not [order for order in world.orders if order["op"] == "signal_trainer"]
    world.nodes["n1"].tasks = 0
    end_trainer(world)
    world.run_to_end()


def test_what_is_left_is_ended_before_slurm_kills() -> None:
    world = start_world(kill_wait_s=10.0)
    world.nodes["n1"].tasks = 1
    world.task_stop_s = None
    world.client_s = 0.1
    world.signal("TERM")
    world.post(TermHeard())
    began_s = world.now
    world.run_to_end()
    assert world.now - began_s < 10.0
