"""What keeps a large run cheap: windows of replicas, rounds of telling, starts in slices, fewer status files."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.channel.messages import FromController, Membership, Report
from retinue.plan.records import Dependency, GroupPlan, Plan, TrainerPlan
from retinue.supervise.fleet import Seat
from retinue.supervise.happenings import AgentSaid, Happening
from retinue.supervise.nodes import Nodes
from retinue.supervise.recorder import Recorder
from retinue.supervise.routes import FEWEST_TOLD, RouteBook
from retinue.supervise.state import RunPhase
from retinue.supervise.upkeep import STARTS_AT_ONCE
from retinue.terms.launch import StopSpec
from retinue.terms.record import replace
from retinue.terms.replica import Phase, Policy, ReadinessChanged, RestartPolicy
from retinue.terms.run import RunRecord
from support.world import Script, World, build_test_plan, service

MANY = tuple(f"n{index}" for index in range(800))


def build_large_plan(callers: int = len(MANY), **fields: Any) -> Plan:
    plan = build_test_plan([service("judge", 700, **fields)], nodes=MANY, trainer=TrainerPlan("train", ("train",)))
    return replace(plan, groups=(*plan.groups, GroupPlan("train", MANY[:callers])))


def make_ready(plan: Plan, gone: str = "") -> dict[str, Seat]:
    return {
        key: replace(seat, replica=replace(seat.replica, phase=Phase.STARTING if key == gone else Phase.READY), port=9)
        for key, seat in World(plan).run.fleet.seats.items()
    }


def name_backends(plan: Plan, seats: dict[str, Seat]) -> dict[str, list[str]]:
    book = RouteBook(plan, seats, Nodes(MANY, ()))
    return {node: [backend.replica for backend in book.build(node).routes[0].backends] for node in MANY}


def test_every_replica_of_a_large_service_is_told_to_about_as_many_gateways() -> None:
    plan = build_large_plan()
    told = name_backends(plan, make_ready(plan))
    assert all(len(set(names)) == len(names) == FEWEST_TOLD for names in told.values())
    shares = Counter(name for names in told.values() for name in names)
    assert len(shares) == 700
    assert max(shares.values()) - min(shares.values()) <= 2


def test_one_replica_of_a_large_service_concerns_the_few_gateways_that_were_told_of_it() -> None:
    plan = build_large_plan()
    before, after = (name_backends(plan, make_ready(plan, gone)) for gone in ("", "judge/350"))
    changed = {node for node in MANY if before[node] != after[node]}
    assert changed == {node for node in MANY if "judge/350" in before[node]}


def test_few_callers_are_told_of_all_replicas_of_a_large_service() -> None:
    plan = build_large_plan(callers=2)
    told = name_backends(plan, make_ready(plan))
    assert [len(told[node]) for node in ("n0", "n1", "n2")] == [700, 700, FEWEST_TOLD]


def test_dependants_are_callers_too() -> None:
    plan = build_large_plan(callers=2)
    user = service("user", 1, after=(Dependency("judge", "ready"),))
    seat = replace(plan.replicas[0], id="user/0", service="user", node="n9")
    plan = replace(plan, services=(*plan.services, user), replicas=(*plan.replicas, seat))
    assert len(name_backends(plan, make_ready(plan))["n9"]) == 700


@pytest.mark.parametrize("name", ["judge/3", "user/0"])
def test_a_book_that_takes_over_what_did_not_change_tells_what_a_new_one_does(name: str) -> None:
    plan = build_large_plan(callers=2)
    user = service("user", 1, after=(Dependency("judge", "ready"),))
    seat = replace(plan.replicas[0], id="user/0", service="user", node="n9")
    plan = replace(plan, services=(*plan.services, user), replicas=(*plan.replicas, seat))
    seats, nodes = make_ready(plan), Nodes(MANY, ())
    earlier = RouteBook(plan, seats, nodes)
    moved = replace(seats[name], port=10, place=replace(seats[name].place, node="n700"))
    book, fresh = (RouteBook(plan, seats | {name: moved}, nodes, before) for before in (earlier, None))
    assert [book.build(node) for node in MANY] == [fresh.build(node) for node in MANY]
    assert any(book.build(node) != earlier.build(node) for node in MANY)


class ToldWorld(World):
    """Keeps what each node's gateway was told, and how many launches each happening caused."""

    def __init__(self, plan: Plan, **fields: Any) -> None:
        self.told: dict[str, list[Membership]] = {node.name: [] for node in plan.allocation.nodes}
        self.most_launches = 0
        super().__init__(plan, **fields)

    def send(self, node: str, message: FromController) -> None:
        if isinstance(message, Membership):
            self.told[node].append(message)
        super().send(node, message)

    def handle(self, happening: Happening) -> None:
        before = [seat.replica.incarnation for seat in self.run.fleet.seats.values()]
        super().handle(happening)
        after = [seat.replica.incarnation for seat in self.run.fleet.seats.values()]
        self.most_launches = max(self.most_launches, sum(after) - sum(before))

    def count_told(self) -> dict[str, int]:
        return {node: len(messages) for node, messages in self.told.items()}

    def turn(self, key: str, is_ready: bool) -> None:
        node = self.run.fleet.seats[key].place.node
        self.handle(AgentSaid(node, Report(key, ReadinessChanged(1, is_ready))))


def start_told_world(plan: Plan, **fields: Any) -> ToldWorld:
    world = ToldWorld(plan, trainer_s=None, **fields)
    world.start()
    world.run_until(lambda: world.run.state.phase is RunPhase.RUNNING)
    world.run_for(10.0)
    return world


def test_changes_in_one_breath_are_told_twice_not_each() -> None:
    world = start_told_world(build_test_plan([service("judge", 40)], nodes=MANY[:40]))
    before = world.count_told()
    for index in range(20):
        world.turn(f"judge/{index}", False)
    world.run_for(3.0)
    assert {node: count - before[node] for node, count in world.count_told().items()} == dict.fromkeys(MANY[:40], 2)
    assert {len(messages[-1].routes[0].backends) for messages in world.told.values()} == {20}


def test_a_replica_that_was_unready_for_a_moment_is_told_to_its_own_gateway_again() -> None:
    """Its agent had the gateway drop it: only a newer membership brings it back, even one that says the same."""
    world = start_told_world(build_test_plan([service("judge", 40)], nodes=MANY[:40]))
    world.turn("judge/0", False)
    before = world.count_told()
    world.turn("judge/7", False)
    world.turn("judge/7", True)
    world.run_for(3.0)
    assert world.count_told()["n7"] > before["n7"]
    assert any(backend.replica == "judge/7" for backend in world.told["n7"][-1].routes[0].backends)


def test_a_node_that_has_nothing_new_to_learn_is_not_told_again() -> None:
    world = start_told_world(build_large_plan())
    before = world.count_told()
    world.turn("judge/350", False)
    world.run_for(3.0)
    told = sum(count > before[node] for node, count in world.count_told().items())
    assert 0 < told < 2 * FEWEST_TOLD


def test_gateways_learn_that_a_service_was_given_up() -> None:
    policy = Policy(restart=RestartPolicy(backoff_s=1.0, limit=1, jitter=0.0), stop=StopSpec("TERM", 5.0))
    plan = build_test_plan([service("judge"), service("other")], policy=policy)
    scripts = {"judge": [Script(exits_s=20.0), Script(ready_s=None, exits_s=2.0)]}
    world = start_told_world(plan, scripts=scripts)
    world.run_until(lambda: world.phase("judge/0") is Phase.FAILED)
    world.run_for(1.0)
    assert world.told["n1"][-1].routes[0].hold_s == 0.0


def test_very_many_replicas_start_in_slices_and_all_of_them_start() -> None:
    world = start_told_world(build_test_plan([service("judge", 3 * STARTS_AT_ONCE + 1)]))
    assert world.most_launches == STARTS_AT_ONCE
    assert len(world.launched) == 3 * STARTS_AT_ONCE + 1


def test_a_status_file_rests_after_it_was_written_but_the_last_one_is_always_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.supervise.recorder.STATUS_REST_S", 1000.0)
    run = start_told_world(build_test_plan([service("judge")])).run
    record = RunRecord("abc", "test", 0, str(tmp_path), str(tmp_path), str(tmp_path), str(tmp_path))
    recorder = Recorder(record, lambda text: None)
    written = []
    for phase in (RunPhase.RUNNING, RunPhase.ENDING, RunPhase.OVER):
        run.state = replace(run.state, phase=phase)
        recorder.write_snapshots(run)
        assert recorder._writer.flush(5.0)
        written.append((tmp_path / "status.json").read_bytes())
    recorder.close()
    assert written[0] == written[1]
    assert b'"over"' in written[2]
