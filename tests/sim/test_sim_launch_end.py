"""The launch of the nodes ends under the run: the cause is what was said last, not only a number."""

import pytest

from retinue.supervise.ending import Cause
from retinue.supervise.happenings import AgentLeft, LaunchExited, NodeGone, NodeReported, StopSignal
from retinue.supervise.state import RunPhase
from support.world import World, build_test_plan, service

REFUSED = "cannot start 'srun' (fork): Resource temporarily unavailable"
LAST_WORDS = "the keeper died unasked: signal SIGKILL\nwhat its log said"


@pytest.mark.parametrize(
    ("note", "exited", "said"),
    [
        ("", LaunchExited(126, None, REFUSED), f"its launch ended ({REFUSED})"),
        ("", LaunchExited(1, None), "its launch ended (exit code 1)"),
        ("", LaunchExited(None, 9), "its launch ended (signal 9)"),
        (LAST_WORDS, LaunchExited(9, None), "the keeper died unasked: signal SIGKILL"),
    ],
)
def test_a_launch_that_ends_under_the_run_loses_its_node_with_the_cause(
    note: str, exited: LaunchExited, said: str
) -> None:
    world = World(plan=build_test_plan([service("judge")]), trainer_s=None)
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    (node,) = world.run.nodes.views
    if note:
        world.post(NodeReported(node, {"retinue_node": node, "clean": True, "note": note}))
    world.post(exited)
    world.run_until(lambda: world.exit_code is not None)
    assert world.exit_code == 5
    ending = world.run.state.ending
    assert ending is not None
    assert (ending.cause, ending.text) == (Cause.NODE_LOST, f"node {node} was lost: {said}")


@pytest.mark.parametrize("ends_by", ["TERM", "KILL"])
def test_a_lost_node_that_keeps_the_launch_alive_does_not_hold_up_the_end(ends_by: str) -> None:
    world = World(plan=build_test_plan([service("judge", 2)], nodes=("n1", "n2")), trainer_s=None)
    order, signals = world.order, []

    def take(said: dict[str, object]) -> None:
        if said["op"] == "signal_launch":
            signals.append(said["signal"])
            if said["signal"] != ends_by:
                return  # srun that waits for a dead node.
        order(said)

    world.order = take  # type: ignore[method-assign]
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    began_s = world.now
    world.post(NodeGone("n2", "nothing heard for 10 s"))
    world.run_until(lambda: world.run.state.phase is RunPhase.ENDING)
    assert signals == []
    world.post(NodeReported("n1", {"retinue_node": "n1", "clean": True, "rung": "namespace"}))
    world.run_until(lambda: world.exit_code is not None)
    assert signals == ["TERM", "KILL"][: 1 + (ends_by == "KILL")]
    assert world.now - began_s < 5.0


def test_a_launch_is_not_touched_while_a_node_that_was_told_to_end_has_not_reported() -> None:
    world = World(plan=build_test_plan([service("judge", 2)], nodes=("n1", "n2")), trainer_s=None)
    world.end_node = lambda name: None  # type: ignore[method-assign] # Agents leave, and nobody reports yet.
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    world.post(StopSignal("TERM", 1))
    world.run_until(lambda: world.run.state.phase is RunPhase.ENDING)
    for name in ("n1", "n2"):
        world.post(AgentLeft(name))
    world.run_for(5.0)
    assert not [order for order in world.orders if order["op"] == "signal_launch"]
