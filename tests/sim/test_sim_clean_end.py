"""A node that goes because the run has ended is no loss; one whose line was cut is told once more."""

import pytest

from retinue.supervise.happenings import AgentLeft, NodeReported
from retinue.supervise.state import RunPhase
from support.world import World, build_test_plan, service

NODES = ("n1", "n2")


@pytest.fixture
def ending() -> World:
    """All nodes are told to end, and have not gone yet."""
    world = World(build_test_plan([service("judge", 2)], NODES), trainer_s=1.0)
    world.end_node = lambda name: None  # type: ignore[method-assign] # The launch goes on: nothing ends by itself here.
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.ENDING)
    world.run_for(0.05)
    return world


def test_nodes_that_leave_at_the_end_are_not_called_lost_however_long_they_are_silent(ending: World) -> None:
    for name in NODES:
        ending.post(AgentLeft(name))
    ending.run_for(12.0)
    assert [note for note in ending.notes if "NodeLost" in note] == []
    assert [view.lost_cause for view in ending.run.nodes.views.values()] == ["", ""]
    assert ending.run.nodes.joined() == []
    for name in NODES:
        ending.post(NodeReported(name, {"retinue_node": name, "clean": True, "rung": "namespace"}))
    assert ending.run_to_end() == 0


def test_a_node_that_falls_silent_at_the_end_without_leaving_is_lost(ending: World) -> None:
    ending.run_for(11.0)
    assert len([note for note in ending.notes if "NodeLost" in note]) == len(NODES)


def test_a_node_whose_line_was_cut_at_the_end_is_told_to_end_when_it_is_back(ending: World) -> None:
    ending.post(AgentLeft("n2"))
    ending.run_for(0.5)
    told: list[str] = []
    node = ending.nodes["n2"]
    node.take = lambda message: told.append(type(message).__name__)  # type: ignore[method-assign,assignment]
    node.join()
    ending.run_for(0.1)
    assert told.count("EndNode") == 1
    assert ending.run.nodes.views["n2"].is_joined
