"""A trainer that runs Slurm tasks is stopped on the nodes, and its srun is left alone as long as that can work."""

from retinue.plan.records import TrainerPlan
from retinue.supervise.state import RunPhase
from support.world import World, build_test_plan, service

NODES = ("n1", "n2")


def start_world(tasks: int = 1, grace_s: float = 60.0) -> World:
    trainer = TrainerPlan(group="all", argv=("srun", "train"), grace_s=grace_s)
    plan = build_test_plan([service("judge", 2)], NODES, trainer=trainer, job_id="7")
    world = World(plan, trainer_s=None)
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING and world.trainer is not None)
    world.run_for(1.0)
    for node in world.nodes.values():
        node.tasks = tasks
    return world


def sent_to_srun(world: World) -> list[str]:
    return [order["signal"] for order in world.orders if order["op"] == "signal_trainer"]


def when(world: World, event: str) -> float:
    return next(float(note.split()[0]) for note in world.notes if f" {event} " in note)


def test_tasks_are_told_once_on_every_node_and_srun_never() -> None:
    world = start_world()
    world.task_stop_s = 5.0
    world.signal("USR2")
    assert world.run_to_end() == 0
    assert [node.told for node in world.nodes.values()] == [["TERM"], ["TERM"]]
    assert sent_to_srun(world) == []


def test_a_trainer_without_tasks_is_a_plain_process_as_ever() -> None:
    world = start_world(tasks=0)
    world.signal("USR2")
    assert world.run_to_end() == 143
    assert sent_to_srun(world) == ["TERM"]


def test_a_node_that_does_not_answer_holds_up_a_plain_trainers_signal_for_five_seconds() -> None:
    world = start_world(tasks=0)
    world.nodes["n2"].is_connected = False
    world.signal("USR2")
    world.run_until(lambda: bool(sent_to_srun(world)))
    told_s = world.now - 1000.0
    assert 4.9 <= told_s - when(world, "StopBegun") <= 6.1


def test_a_wrapper_that_outlives_its_tasks_is_told_after_three_seconds() -> None:
    world = start_world()
    world.client_s = None
    world.signal("USR2")
    assert world.run_to_end() == 143
    assert sent_to_srun(world) == ["TERM"]
    told = [float(note.split()[0]) for note in world.notes if " StopTold " in note]
    assert len(told) == 2
    assert 3.0 <= told[1] - told[0] <= 5.0


def test_tasks_that_ignore_the_signal_are_killed_after_the_grace_and_srun_after_them() -> None:
    world = start_world(grace_s=10.0)
    world.task_stop_s = None
    world.signal("USR2")
    assert world.run_to_end() == 0
    assert [node.told for node in world.nodes.values()] == [["TERM", "KILL"], ["TERM", "KILL"]]
    assert sent_to_srun(world) == []


def test_srun_is_killed_when_it_outlives_its_killed_tasks() -> None:
    world = start_world(grace_s=10.0)
    world.task_stop_s = world.client_s = None
    world.signal("USR2")
    assert world.run_to_end() == 137
    assert sent_to_srun(world) == ["KILL"]


def test_a_second_signal_kills_tasks_two_seconds_later() -> None:
    world = start_world()
    world.task_stop_s = None
    world.signal("USR2")
    world.run_for(5.0)
    world.signal("TERM", count=2)
    hurried_s = world.now
    world.run_until(lambda: "KILL" in world.nodes["n1"].told)
    assert 1.9 <= world.now - hurried_s <= 2.5
    world.run_to_end()


def test_a_task_that_starts_during_the_stop_is_told_too() -> None:
    world = start_world(tasks=0)
    world.nodes["n1"].tasks = 1
    world.task_stop_s = None
    world.signal("USR2")
    world.run_for(1.5)
    world.nodes["n2"].tasks = 1
    world.run_until(lambda: world.nodes["n2"].told == ["TERM"], limit_s=2.0)
    world.run_to_end()


def test_a_terminals_interrupt_reaches_tasks_although_srun_has_it_already() -> None:
    world = start_world()
    world.signal("INT", is_from_terminal=True)
    assert world.run_to_end() == 0
    assert [node.told for node in world.nodes.values()] == [["INT"], ["INT"]]
    assert sent_to_srun(world) == []


def test_a_controller_killed_during_the_stop_goes_on_with_it() -> None:
    world = start_world(grace_s=10.0)
    world.task_stop_s = None
    world.signal("USR2")
    began_s = world.now
    world.run_for(4.0)
    world.kill_controller()
    assert world.run_to_end() == 0
    assert [node.told for node in world.nodes.values()] == [["TERM", "KILL"], ["TERM", "KILL"]]
    assert world.now - began_s < 15.0
