"""The launch of the nodes ends under the run: the cause is what was said last, not only a number."""

import pytest

from retinue.supervise.ending import Cause
from retinue.supervise.happenings import LaunchExited, NodeReported
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
