"""A preemption is announced: TERM to every step and not to the batch script, and the end a GraceTime later."""

import pytest

from retinue.supervise.ending import Cause
from retinue.supervise.happenings import NodeReported
from retinue.supervise.state import RunPhase
from support.world import World, build_test_plan, service

NODES = ("n1", "n2")


def announce(is_whole: bool = False, **fields: float) -> World:
    """Every node has had TERM and is gone; the trainer goes on. `is_whole`: the batch script has had it as well."""
    world = World(build_test_plan([service("judge", 2)], NODES, job_id="7", **fields), trainer_s=None)
    world.trainer_stop_s = 1e6
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING and world.trainer is not None)
    world.run_for(1.0)
    if is_whole:
        world.signal("TERM")
    for node in NODES:
        world.nodes[node].alive.clear()
        world.nodes[node].is_connected = False
        report = {"retinue_node": node, "clean": True, "rung": "namespace", "note": "asked", "asked_by": "SIGTERM"}
        world.post(NodeReported(node, report))
    world.after(0.1, lambda: world.end_node("n2"))
    return world


@pytest.mark.parametrize(("grace_s", "latest_s"), [(0.0, 10.0), (40.0, 50.0)])
def test_the_trainer_has_the_partitions_grace_and_is_ended_before_slurm_kills(grace_s: float, latest_s: float) -> None:
    world = announce(kill_wait_s=10.0, preempt_grace_s=grace_s)
    began_s = world.now
    world.run_to_end()
    took_s = world.now - began_s
    assert grace_s * 0.8 < took_s < latest_s
    ending = world.run.state.ending
    assert ending is not None
    assert (ending.cause, "but the batch script's" in ending.text) == (Cause.SIGNAL, True)


def test_a_trainer_is_told_once_unless_it_has_an_srun() -> None:
    world = announce(kill_wait_s=10.0, preempt_grace_s=40.0)
    world.run_for(3.0)
    told = [order for order in world.orders if order["op"] == "signal_trainer"]
    assert told == [{"op": "signal_trainer", "signal": "TERM", "spares_srun": True}]
    world.end_trainer(3, None)
    assert world.run_to_end() == 3
    said = [note.split()[1:3] for note in world.notes]
    assert [event for subject, event in said if subject in NODES][-2:] == ["NodeEnded", "NodeEnded"]
    assert ["trainer", "Killed"] not in said


def test_the_end_itself_leaves_no_more_than_slurm_waits_with_its_kill() -> None:
    world = announce(kill_wait_s=10.0, preempt_grace_s=400.0)
    world.run_for(5.0)
    began_s = world.now
    world.signal("TERM")
    world.run_to_end()
    assert world.now - began_s < 10.0


def test_a_signal_to_all_of_the_job_has_no_such_grace() -> None:
    world = announce(is_whole=True, kill_wait_s=10.0, preempt_grace_s=400.0)
    began_s = world.now
    world.run_to_end()
    assert world.now - began_s < 10.0
    assert [order for order in world.orders if order.get("spares_srun")] == []
