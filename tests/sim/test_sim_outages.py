"""The controller's part of the ledger: what took requests and is gone is an outage, what we stop is none."""

import pytest

from retinue.channel.messages import Report
from retinue.supervise.happenings import AgentSaid, NodeGone, TrainerExited
from retinue.supervise.state import RunPhase
from retinue.terms.outage import Outage, merge_outages
from retinue.terms.record import to_json
from retinue.terms.replica import ReadinessChanged
from support.world import Script, World, build_test_plan, service


def start(scripts: dict[str, list[Script]] | None = None, nodes: tuple[str, ...] = ("n1",)) -> World:
    world = World(
        build_test_plan([service("judge", 1), service("corpus", 1)], nodes=nodes), scripts or {}, trainer_s=None
    )
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    return world


def list_merged(world: World) -> list[Outage]:
    return merge_outages(to_json(outage) for outage in world.outages)


def test_a_replica_that_crashed_is_an_outage_until_it_takes_requests_again() -> None:
    world = start({"judge": [Script(exits_s=30.0), Script()]})
    world.run_for(100.0)
    [outage] = list_merged(world)
    assert (outage.service, outage.replica, outage.node, outage.cause) == ("judge", "judge/0", "n1", "replica_down")
    assert outage.to_utc is not None
    assert outage.to_utc > outage.from_utc
    assert "exit" in outage.detail
    assert [line.to_utc is None for line in world.outages] == [True, False]


def test_one_that_is_not_ready_for_a_while_is_an_outage_too() -> None:
    world = start()
    incarnation = world.run.fleet.seats["judge/0"].replica.incarnation
    for is_ready in (False, True):
        event = ReadinessChanged(incarnation, is_ready, "the probe said so")
        world.handle(AgentSaid("n1", Report("judge/0", event)))
        world.run_for(1.0)
    [outage] = list_merged(world)
    assert outage.to_utc is not None
    assert "the probe said so" in outage.detail


def test_the_end_of_the_run_is_no_outage_and_closes_what_lasts() -> None:
    world = start({"judge": [Script(exits_s=30.0, code=3)]})
    world.run_for(60.0)
    world.handle(TrainerExited(0, None))
    world.run_to_end()
    [outage] = list_merged(world)
    assert outage.replica == "judge/0"
    assert outage.to_utc is not None
    assert "the run ended meanwhile" in outage.detail


def test_a_lost_node_is_an_outage_of_what_was_on_it_until_it_runs_elsewhere() -> None:
    world = start(nodes=("n1", "n2"))
    lost = world.run.fleet.seats["judge/0"].place.node
    world.nodes[lost].alive.clear()
    world.nodes[lost].is_connected = False
    world.handle(NodeGone(lost, "silent"))
    world.run_for(120.0)
    found = [outage for outage in list_merged(world) if outage.replica == "judge/0"]
    assert [(outage.node, outage.to_utc is None) for outage in found] == [(lost, False)]


@pytest.mark.parametrize(
    ("moment", "touches"), [((0.0, 9.0), False), ((0.0, 10.0), True), ((15.0, 16.0), True), ((21.0, None), False)]
)
def test_a_row_was_scored_meanwhile_when_the_two_times_overlap(
    moment: tuple[float, float | None], touches: bool
) -> None:
    outage = Outage("judge", "n1", 10.0, 20.0, "replica_down")
    assert outage.touches(*moment) is touches
    assert Outage("judge", "n1", 10.0, None, "replica_down").touches(30.0)


def test_torn_lines_of_a_ledger_count_as_not_there_and_a_second_writing_changes_nothing() -> None:
    begun = Outage("judge", "n1", 1.0, None, "replica_down")
    over = Outage("judge", "n1", 1.0, 2.0, "replica_down")
    lines = [to_json(begun), b'{"service":"ju', to_json(over), to_json(begun)]
    assert merge_outages(lines) == [over]
