"""What a starting run says on the terminal."""

from retinue.channel.messages import Beat
from support.world import Script, World, build_test_plan, service


def test_a_slow_start_names_what_is_waited_for_and_why() -> None:
    world = World(build_test_plan([service("judge"), service("corpus")]), {"judge": [Script(ready_s=100.0)]})
    world.start()
    world.run_for(3.0)
    world.nodes["n1"].say(Beat(failing={"judge/0": "readiness probe: port 9001: Connection refused"}))
    world.run_for(30.0)
    assert world.said
    assert all(
        "judge 0/1: judge/0 starting: readiness probe: port 9001: Connection refused" in text for text in world.said
    )
    assert not any("corpus" in text for text in world.said)
    assert len(world.said) <= 4


def test_a_service_that_nothing_limits_is_told_how_to_limit_it() -> None:
    world = World(build_test_plan([service("judge")]), {"judge": [Script(ready_s=None)]})
    world.start()
    world.run_for(120.0)
    assert "set probes.startup with a budget" in world.said[-1]
    assert "set probes.startup" not in world.said[0]


def test_a_quick_start_and_a_running_run_say_nothing() -> None:
    world = World(build_test_plan([service("judge")]), trainer_s=300.0)
    world.start()
    world.run_to_end()
    assert world.said == []


def test_nodes_that_do_not_join_are_named() -> None:
    world = World(build_test_plan([service("judge")], nodes=("n1", "n2")))
    world.nodes["n2"].join = lambda: None  # type: ignore[method-assign]
    world.start()
    world.run_for(20.0)
    assert world.said[0].startswith("waiting for 1 of 2 nodes to join: n2")
