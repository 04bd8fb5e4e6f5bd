"""A node is lost: who may go where, and the words when nobody can."""

from typing import Any

import pytest

from retinue.allocation.described import parse_description
from retinue.manifest.schema import Manifest
from retinue.plan.again import place_again
from retinue.plan.build import build_plan
from retinue.plan.records import Plan, ReplicaPlan
from retinue.terms.record import replace


def plan_for(services: dict[str, Any], grant: str = "n[1-3]", **keys: Any) -> Plan:
    manifest = Manifest.model_validate({"retinue": 1, "run": {"name": "demo"}, "services": services, **keys})
    return build_plan(manifest, parse_description(grant, gpus=4, cpus=8), (), "/start", "/run{port}", "/run/a")


def judge(count: int, gpus: int, **place: Any) -> dict[str, Any]:
    command = ["serve", "{node}", "{port}", "{{node}}", "{run_dir}"]
    return {"judge": {"command": command, "replicas": count, "place": {"gpus": gpus, **place}}}


def moved(answer: ReplicaPlan | str) -> ReplicaPlan:
    assert isinstance(answer, ReplicaPlan), answer
    return answer


def test_the_launch_names_the_new_node_and_keeps_what_was_escaped() -> None:
    plan = plan_for(judge(1, 2))
    place = moved(place_again(plan, "judge/0", frozenset({"n1"}), ()))
    assert (place.node, place.gpus, place.launch.gpus) == ("n2", (0, 1), (0, 1))
    assert place.launch.argv == ("serve", "n2", "{port}", "{{node}}", "/run{{port}}")
    assert place.why == "placed again: most free in group all: 4 GPUs"
    assert place.policy == plan.replicas[0].policy


def test_a_second_loss_moves_it_from_where_it_is_now_and_not_from_where_the_plan_had_it() -> None:
    plan = plan_for(judge(1, 2))
    first = moved(place_again(plan, "judge/0", frozenset({"n1"}), ()))
    second = moved(place_again(plan, "judge/0", frozenset({"n1", first.node}), (first,)))
    assert second.node == "n3"
    assert second.launch.argv[1] == "n3"


def test_its_own_old_place_takes_nothing_away_from_it() -> None:
    plan = plan_for(judge(1, 4), grant="n[1-2]")
    here = replace(plan.replicas[0], node="n2")
    assert moved(place_again(plan, "judge/0", frozenset({"n1"}), (here,))).node == "n2"


def test_what_others_hold_now_counts_and_what_they_held_on_lost_nodes_does_not() -> None:
    plan = plan_for(judge(2, 3))
    first, second = plan.replicas
    assert (first.node, second.node) == ("n1", "n2")
    assert moved(place_again(plan, "judge/0", frozenset({"n1"}), (second,))).node == "n3"
    gone = replace(second, node="n1")
    assert moved(place_again(plan, "judge/0", frozenset({"n1"}), (gone,))).node == "n2"


def test_counted_cpus_count_again() -> None:
    plan = plan_for(judge(3, 0, cpus=5))
    lost = frozenset({"n1"})
    answer = place_again(plan, "judge/0", lost, plan.replicas[1:])
    assert answer == ("cannot place judge/0 again: needs 5 CPUs on one node of group all; free: n2 3, n3 3")


def test_pack_is_kept_when_it_moves() -> None:
    services = {**judge(1, 1, strategy="pack"), "other": {"command": ["x"], "place": {"gpus": 2}}}
    plan = plan_for(services)
    other = replace(plan.replicas[1], node="n3")
    place = moved(place_again(plan, "judge/0", frozenset({"n1"}), (other,)))
    assert (place.node, place.gpus) == ("n3", (2,))


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ({"n1"}, "cannot place judge/0 again: needs 4 GPUs on one node of group all; free: n2 0, n3 0"),
        ({"n1", "n2", "n3"}, "cannot place judge/0 again: every node of group all is lost"),
    ],
)
def test_no_place_is_an_answer_in_words_and_not_an_exception(lost: set[str], words: str) -> None:
    plan = plan_for(judge(3, 4))
    assert place_again(plan, "judge/0", lost, plan.replicas[1:]) == words


def test_one_per_node_stays_where_it_belongs() -> None:
    plan = plan_for({"corpus": {"command": ["x"], "per_node": "all"}})
    assert place_again(plan, "corpus/1", {"n2"}, ()) == "cannot place corpus/1 again: it belongs on n2"


def test_a_group_of_one_node_has_no_other() -> None:
    plan = plan_for({"a": {"command": ["x"], "place": {"on": "t"}}}, nodes={"t": {"count": 1}, "r": {"count": "rest"}})
    assert place_again(plan, "a/0", {"n1"}, ()) == "cannot place a/0 again: it belongs on n1"


def test_a_replica_the_plan_does_not_have_is_an_answer_too() -> None:
    assert place_again(plan_for(judge(1, 1)), "judge/7", set(), ()) == (
        "cannot place 'judge/7' again: the plan has no such replica"
    )
