"""Nodes that cannot take part end the start at once and by name; nodes that end later are lost at once."""

from retinue.supervise.ending import Cause
from retinue.supervise.happenings import LaunchSaid, NodeReported
from retinue.supervise.state import RunPhase
from retinue.terms.replica import Phase
from support.world import World, build_test_plan, service


def build_world(joins: bool) -> World:
    world = World(build_test_plan([service("judge", 2)], nodes=("n1", "n2")), trainer_s=None)
    if not joins:
        world.nodes["n2"].join = lambda: None  # type: ignore[method-assign]
    world.start()
    world.run_for(5.0)
    return world


def refuse(note: str) -> NodeReported:
    return NodeReported("n2", {"retinue_node": "n2", "clean": True, "rung": "", "note": note})


def test_a_node_that_refuses_to_take_part_ends_the_start_by_name() -> None:
    world = build_world(joins=False)
    world.post(refuse("does not see the run directory '/x'"))
    world.run_until(lambda: world.exit_code is not None)
    ending = world.run.state.ending
    assert ending is not None
    assert (ending.cause, world.exit_code) == (Cause.NOT_READY, 5)
    assert ending.text == "node n2 cannot take part: does not see the run directory '/x'"
    assert world.launched == []


def test_what_srun_says_of_a_node_ends_the_start_with_the_lines_before_it() -> None:
    world = build_world(joins=False)
    world.post(LaunchSaid("slurmstepd: error: execve(): /opt/python: No such file or directory"))
    world.post(LaunchSaid("srun: error: n2: task 1: Exited with exit code 2"))
    world.run_until(lambda: world.exit_code is not None)
    ending = world.run.state.ending
    assert ending is not None
    assert ending.cause is Cause.NOT_READY
    assert "n2" in ending.text
    assert "/opt/python: No such file or directory; Exited with exit code 2" in ending.text


def test_a_report_of_a_running_node_loses_it_without_waiting_for_its_silence() -> None:
    world = build_world(joins=True)
    assert world.run.state.phase is RunPhase.RUNNING
    world.nodes["n2"].is_connected = False
    world.post(
        NodeReported("n2", {"retinue_node": "n2", "clean": True, "rung": "namespace", "note": "the keeper died"})
    )
    world.run_for(0.1)
    assert world.run.nodes.views["n2"].is_lost
    assert world.run.fleet.replicas["judge/1"].phase is not Phase.READY


def test_words_and_reports_about_strangers_change_nothing() -> None:
    world = build_world(joins=True)
    world.post(NodeReported("elsewhere", {"retinue_node": "elsewhere", "rung": ""}))
    world.post(LaunchSaid("srun: error: elsewhere: task 7: Killed"))
    world.post(LaunchSaid("srun: error: n[2-1]: tasks 0-1: Killed"))
    world.run_for(1.0)
    assert world.run.state.ending is None
    assert not any(view.is_lost for view in world.run.nodes.views.values())


def test_the_end_of_nodes_at_the_end_of_the_run_is_no_news() -> None:
    world = build_world(joins=True)
    world.run.teardown.begin(Cause.OPERATOR, "enough")
    world.run_until(lambda: world.run.state.phase is RunPhase.ENDING)
    world.post(LaunchSaid("srun: error: n2: task 1: Exited with exit code 9"))
    world.run_until(lambda: world.exit_code is not None)
    assert not any("NodeLost" in note for note in world.notes)
