"""The small pure parts of `supervise`: exit codes, ports, routes, the trainer's environment, the saved state."""

from pathlib import Path

import pytest

from retinue.channel.messages import Route
from retinue.node.environment import extend_no_proxy
from retinue.plan.records import Plan
from retinue.supervise.ending import Cause, Ending, find_exit_code
from retinue.supervise.fleet import Seat
from retinue.supervise.gateway_port import build_port_candidates
from retinue.supervise.nodes import Nodes
from retinue.supervise.routes import FALLBACK_COUNT, RouteBook
from retinue.supervise.state import RunPhase, RunState
from retinue.supervise.store import StateStore
from retinue.supervise.trainer import build_trainer_environment
from retinue.terms.record import replace
from retinue.terms.replica import OnExhausted, Phase
from retinue.terms.run import RunRecord
from support.world import World, build_test_plan, service

RECORD = RunRecord("abc", "test", 0, "/runs/x", "/runs/x/attempt-0", "/tmp/n", "/home/u")


@pytest.mark.parametrize(
    ("ending", "was_started", "code", "signal", "expected"),
    [
        (Ending(Cause.TRAINER, ""), True, 7, None, 7),
        (Ending(Cause.TRAINER, ""), True, None, 9, 137),
        (Ending(Cause.SIGNAL, "", signal=15), True, 0, None, 0),
        (Ending(Cause.SIGNAL, "", signal=2), False, None, None, 130),
        (Ending(Cause.OPERATOR, ""), False, None, None, 0),
        (Ending(Cause.OPERATOR, ""), True, None, 15, 143),
        (Ending(Cause.FAIL_RUN, ""), True, 0, None, 5),
        (Ending(Cause.NODE_LOST, ""), True, None, 15, 5),
        (Ending(Cause.NOT_READY, ""), False, None, None, 5),
        (Ending(Cause.TRAINER_REFUSED, "", refused_code=127), False, None, None, 127),
        (Ending(Cause.DEADLINE, ""), False, None, None, 5),
        (Ending(Cause.INTERNAL, ""), False, None, None, 70),
    ],
)
def test_exit_codes(ending: Ending, was_started: bool, code: int | None, signal: int | None, expected: int) -> None:
    assert find_exit_code(ending, was_started, code, signal) == expected


def test_port_candidates_keep_out_of_the_ephemeral_range_and_repeat_for_the_same_run() -> None:
    ports = build_port_candidates("run1", (32768, 60999))
    assert len(set(ports)) == 20
    assert all(not 32768 <= port <= 60999 and 20000 <= port < 65000 for port in ports)
    assert ports == build_port_candidates("run1", (32768, 60999))
    assert ports != build_port_candidates("run2", (32768, 60999))


def test_port_candidates_exist_even_when_the_ephemeral_range_is_everything() -> None:
    ports = build_port_candidates("run1", (1024, 65535))
    assert len(set(ports)) == 20


def seats_of(world: World, phase: Phase) -> dict[str, Seat]:
    return {
        key: replace(seat, replica=replace(seat.replica, phase=phase, incarnation=1), port=9000)
        for key, seat in world.run.fleet.seats.items()
    }


def build_routes(plan: Plan, phase: Phase, node: str) -> tuple[Route, ...]:
    names = [node.name for node in plan.allocation.nodes]
    return RouteBook(plan, seats_of(World(plan), phase), Nodes(names, ())).build(node).routes


def test_a_per_node_service_prefers_the_own_node_and_knows_few_others() -> None:
    nodes = tuple(f"n{index}" for index in range(40))
    plan = build_test_plan([service("checks", 40, is_per_node=True)], nodes=nodes)
    backends = build_routes(plan, Phase.READY, "n7")[0].backends
    assert backends[0].node == "n7"
    assert len(backends) == 1 + FALLBACK_COUNT


def test_a_route_without_backends_holds_unless_the_service_was_degraded_away() -> None:
    plan = build_test_plan([service("judge"), service("held", on_exhausted=OnExhausted.HOLD)])
    routes = build_routes(plan, Phase.FAILED, "n1")
    assert [route.hold_s for route in routes] == [0.0, plan.hold_s]
    assert routes[0].cause.startswith("judge/0 failed")


def test_a_starting_service_holds_its_callers() -> None:
    plan = build_test_plan([service("judge")])
    route = build_routes(plan, Phase.STARTING, "n1")[0]
    assert route.hold_s == plan.hold_s
    assert not route.backends


def test_the_trainer_gets_urls_groups_and_a_no_proxy_that_covers_loopback() -> None:
    plan = build_test_plan([service("small-judge")], nodes=("n1", "n2"))
    caller = {"PATH": "/bin", "HTTP_PROXY": "http://proxy:3128", "no_proxy": "example.org"}
    env = build_trainer_environment(plan, RECORD, caller, 21001)
    assert env["RETINUE_SMALL_JUDGE_URL"] == "http://127.0.0.1:21001/small-judge"
    assert (env["RETINUE_NODELIST"], env["RETINUE_NNODES_ALL"]) == ("n[1-2]", "2")
    assert env["HTTP_PROXY"] == "http://proxy:3128"
    assert env["no_proxy"].split(",") == ["example.org", "127.0.0.1", "localhost", "::1", "n1", "n2"]
    assert caller == {"PATH": "/bin", "HTTP_PROXY": "http://proxy:3128", "no_proxy": "example.org"}


def test_the_trainer_of_a_nested_run_sees_nothing_of_the_outer_one() -> None:
    caller = {"RETINUE_JUDGE_URL": "http://stale", "RETINUE_RUN_ID": "outer", "HOME": "/home/u"}
    env = build_trainer_environment(build_test_plan([service("corpus")]), RECORD, caller, 21001)
    assert "RETINUE_JUDGE_URL" not in env
    assert (env["RETINUE_RUN_ID"], env["HOME"]) == ("abc", "/home/u")


def test_no_proxy_does_not_grow_when_runs_are_nested() -> None:
    once = extend_no_proxy("", ("127.0.0.1",))
    assert extend_no_proxy(once, ("127.0.0.1",)) == once


def test_the_store_gives_back_the_last_of_every_key_and_survives_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    seats = World(build_test_plan([service("judge")])).run.fleet.seats
    store = StateStore(path)
    store.save("run", RunState(phase=RunPhase.STARTING))
    store.save("run", RunState(phase=RunPhase.RUNNING))
    store.save("replica:judge/0", replace(seats["judge/0"], port=1234))
    store.close()
    with open(path, "ab") as file:
        file.write(b'{"key":"run","run":{"ph')
    again = StateStore(path)
    state, loaded = again.load()
    again.close()
    assert state is not None
    assert state.phase is RunPhase.RUNNING
    assert loaded["judge/0"].port == 1234


def test_the_store_stays_small_over_many_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.supervise.store.COMPACT_BYTES", 10_000)
    store = StateStore(tmp_path / "state.jsonl")
    for pid in range(500):
        store.save("run", RunState(trainer_pid=pid))
    store.close()
    assert (tmp_path / "state.jsonl").stat().st_size < 30_000
    again = StateStore(tmp_path / "state.jsonl")
    state, _ = again.load()
    again.close()
    assert state is not None
    assert state.trainer_pid == 499
