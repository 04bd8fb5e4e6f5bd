"""A plan from a manifest and a grant: groups, launches, policies, lanes, the trainer."""

from typing import Any

import pytest

from retinue.allocation.described import parse_description
from retinue.errors import UsageError
from retinue.manifest.schema import Manifest
from retinue.plan.build import build_plan
from retinue.plan.expand import expand
from retinue.plan.records import Dependency, Egress, Plan, ReplicaPlan
from retinue.terms.launch import ProbeKind, ProbeSpec, StopSpec
from retinue.terms.record import from_json, to_json
from retinue.terms.replica import OnExhausted

SERVER = ["serve", "--port", "{port}"]
SPLIT = {"train": {"count": 2}, "env": {"count": "rest"}}


def plan_for(services: dict[str, Any], grant: str = "n[1-4]", argv: tuple[str, ...] = (), **keys: Any) -> Plan:
    """Plan on nodes of 4 GPUs, 16 CPUs and 64 GiB."""
    manifest = Manifest.model_validate({"retinue": 1, "run": {"name": "demo"}, "services": services, **keys})
    allocation = parse_description(grant, gpus=4, cpus=16, memory_mib=65536)
    return build_plan(manifest, allocation, argv, "/start", "/runs/demo", "/runs/demo/attempt-0")


def only(service: dict[str, Any], **keys: Any) -> ReplicaPlan:
    (place,) = plan_for({"judge": service}, **keys).replicas
    return place


def seats(plan: Plan, service: str) -> list[tuple[str, tuple[int, ...]]]:
    return [(place.node, place.gpus) for place in plan.replicas if place.service == service]


def test_groups_are_cut_in_order_and_all_is_every_node() -> None:
    groups = {"train": {"count": 1}, "env": {"count": "rest"}, "last": {"count": 2}}
    plan = plan_for({"a": {"command": ["x"]}}, grant="n[1-5]", nodes=groups)
    assert [(group.name, group.nodes) for group in plan.groups] == [
        ("train", ("n1",)),
        ("env", ("n2", "n3")),
        ("last", ("n4", "n5")),
        ("all", ("n1", "n2", "n3", "n4", "n5")),
    ]


def test_without_groups_there_is_only_all() -> None:
    plan = plan_for({"a": {"command": ["x"]}}, grant="n[1-2]")
    assert [group.name for group in plan.groups] == ["all"]
    assert plan.warnings == ()


def test_nodes_of_no_group_are_pointed_out() -> None:
    plan = plan_for({"a": {"command": ["x"]}}, nodes={"train": {"count": 2}})
    assert plan.warnings == ("n3, n4 in no group of nodes; only services on `all` are placed there",)


def test_spread_takes_the_node_with_most_free_and_then_the_first() -> None:
    place = {"on": "env", "gpus": 1}
    plan = plan_for(
        {
            "judge": {"command": SERVER, "place": {"on": "env", "gpus": 3}},
            "b": {"command": SERVER, "replicas": 5, "place": place},
        },
        nodes=SPLIT,
    )
    assert seats(plan, "judge") == [("n3", (0, 1, 2))]
    assert seats(plan, "b") == [("n4", (0,)), ("n4", (1,)), ("n4", (2,)), ("n3", (3,)), ("n4", (3,))]
    assert plan.replicas[1].why == "most free in group env: 4 GPUs"


def test_spread_without_needs_levels_the_replicas_of_the_service() -> None:
    plan = plan_for({"a": {"command": ["x"], "replicas": 5}}, grant="n[1-3]")
    assert [node for node, _ in seats(plan, "a")] == ["n1", "n2", "n3", "n1", "n2"]
    assert plan.replicas[3].why == "fewest replicas of a in group all (1 before this one)"


def test_pack_fills_a_node_before_it_opens_the_next() -> None:
    place = {"gpus": 2, "strategy": "pack"}
    plan = plan_for({"a": {"command": ["x"], "replicas": 3, "place": place}})
    assert seats(plan, "a") == [("n1", (0, 1)), ("n1", (2, 3)), ("n2", (0, 1))]


def test_cpus_and_memory_count_only_where_they_are_asked_for() -> None:
    services = {
        "quiet": {"command": ["x"], "replicas": 100},
        "wide": {"command": ["x"], "replicas": 2, "place": {"cpus": 10}},
        "deep": {"command": ["x"], "replicas": 2, "place": {"memory": "40GiB"}},
    }
    plan = plan_for(services, grant="n[1-2]")
    assert sorted(node for node, _ in seats(plan, "wide")) == ["n1", "n2"]
    assert sorted(node for node, _ in seats(plan, "deep")) == ["n1", "n2"]
    assert (plan.replicas[-1].memory_mib, plan.replicas[-1].cpus) == (40960, 0)


def test_devices_are_shared_only_among_services_that_all_say_so() -> None:
    shared = {"gpus": 4, "share_gpus": "true"}
    services = {
        "alone": {"command": ["x"], "place": {"gpus": 4}},
        "a": {"command": ["x"], "place": shared},
        "b": {"command": ["x"], "place": shared},
    }
    plan = plan_for(services, grant="n[1-2]")
    every = (0, 1, 2, 3)
    assert [(place.node, place.gpus) for place in plan.replicas] == [("n1", every), ("n2", every), ("n2", every)]


def test_a_sharing_service_takes_the_least_shared_devices_first() -> None:
    plan = plan_for({"a": {"command": ["x"], "replicas": 5, "place": {"gpus": 1, "share_gpus": "true"}}}, grant="n1")
    assert seats(plan, "a") == [("n1", (0,)), ("n1", (1,)), ("n1", (2,)), ("n1", (3,)), ("n1", (0,))]


def test_per_node_puts_one_on_every_node_of_its_group() -> None:
    plan = plan_for({"corpus": {"command": SERVER, "per_node": "env"}}, nodes=SPLIT)
    assert [(place.id, place.node) for place in plan.replicas] == [("corpus/0", "n3"), ("corpus/1", "n4")]
    assert plan.services[0].is_per_node
    assert not plan.replicas[0].policy.is_movable


@pytest.mark.parametrize(("group", "is_movable"), [("env", True), ("lone", False)])
def test_a_replica_moves_only_where_its_group_has_another_node(group: str, is_movable: bool) -> None:
    groups = {"lone": {"count": 1}, "env": {"count": "rest"}}
    assert only({"command": ["x"], "place": {"on": group}}, nodes=groups).policy.is_movable is is_movable


def test_a_launch_holds_what_the_plan_knows_and_leaves_the_rest_to_the_node() -> None:
    service = {
        "command": ["s", "{port}", "{host}", "{node_dir}", "{node}", "{replica}", "{index}", "{run_dir}", "{{port}}"],
        "env": {
            "PEERS": "{train.nodelist} {env.count} {all.nodelist}",
            "TOKEN": "env:HF",
            "KEY": "file:/k",
            "U": "file://u",
        },
        "keep_env": ["SLURM_*"],
        "cwd": "sub/dir",
        "stop": {"signal": "INT", "grace": "5s"},
        "place": {"on": "env", "gpus": 2},
        "listen": "node",
        "port_reuse": "false",
        "okay_delay": "3s",
    }
    plan = plan_for({"judge": service}, nodes=SPLIT)
    launch = plan.replicas[0].launch
    assert launch.argv[1:] == ("{port}", "{host}", "{node_dir}", "n3", "judge/0", "0", "/runs/demo", "{{port}}")
    assert launch.env == {"PEERS": "n[1-2] 2 n[1-4]", "U": "file://u"}
    assert launch.secret_files == {"KEY": "/k"}
    assert launch.secrets == {}
    assert plan.services[0].env_secrets == (("TOKEN", "HF"),)
    assert launch.cwd == "/start/sub/dir"
    assert launch.stop == StopSpec(signal="INT", grace_s=5.0)
    assert launch.gpus == (0, 1)
    assert launch.keep_env == ("SLURM_*",)
    assert (launch.listen, launch.port_reuse, launch.wants_port, launch.okay_delay_s) == ("node", False, True, 3.0)
    assert (launch.incarnation, launch.log_path) == (0, "/runs/demo/attempt-0/logs/judge.0/launch-{n}.log")


@pytest.mark.parametrize("run_dir", ["/runs/{port}", "/runs/{node}", "/runs/{{x}}"])
def test_a_directory_with_braces_reaches_the_node_as_it_is(run_dir: str) -> None:
    services = {"a": {"command": ["x", "{run_dir} {{node}}"]}}
    manifest = Manifest.model_validate({"retinue": 1, "run": {"name": "d"}, "services": services})
    plan = build_plan(manifest, parse_description("n1"), (), "/s", run_dir, f"{run_dir}/a")
    final = expand(plan.replicas[0].launch.argv[1], {"port": "1", "host": "h", "node_dir": "d"})
    assert final == f"{run_dir} {{node}}"


IMPLIED = (ProbeSpec(kind=ProbeKind.READINESS, tcp=True, period_s=1.0),)


@pytest.mark.parametrize(
    ("command", "probes", "expected"),
    [
        (["x"], {}, ()),
        (SERVER, {}, IMPLIED),
        (
            SERVER,
            {"readiness": {"http": "/health", "timeout": "2s", "successes": "2"}},
            (ProbeSpec(kind=ProbeKind.READINESS, http_path="/health", timeout_s=2.0, successes=2),),
        ),
        (
            SERVER,
            {"startup": {"tcp": "true", "successes": "4"}, "liveness": {"http": {"path": "/l", "port": "9"}}},
            (
                ProbeSpec(kind=ProbeKind.STARTUP, tcp=True),
                ProbeSpec(kind=ProbeKind.LIVENESS, http_path="/l", port=9),
            ),
        ),
        (["x"], {"readiness": {"tcp": "81"}}, (ProbeSpec(kind=ProbeKind.READINESS, tcp=True, port=81),)),
        (
            SERVER,
            {"readiness": {"exec": ["ask", "{node}:{port}", "{index}"]}},
            (ProbeSpec(kind=ProbeKind.READINESS, exec_argv=("ask", "n1:{port}", "0")),),
        ),
    ],
)
def test_probes_become_what_an_agent_asks(command: list[str], probes: Any, expected: tuple[ProbeSpec, ...]) -> None:
    place = only({"command": command, "probes": probes})
    assert place.launch.probes == expected
    assert place.policy.has_readiness is any(probe.kind is ProbeKind.READINESS for probe in expected)


@pytest.mark.parametrize(
    ("startup", "budget_s"),
    [
        ({"tcp": "true", "budget": "30m"}, 1800.0),
        ({"tcp": "true", "period": "5s", "failures": "6"}, 30.0),
        ({"tcp": "true", "period": "5s", "failures": "6", "initial_delay": "60s"}, 90.0),
    ],
)
def test_a_start_has_the_budget_kubernetes_would_give_it(startup: dict[str, str], budget_s: float) -> None:
    assert only({"command": SERVER, "probes": {"startup": startup}}).policy.startup_budget_s == budget_s


def test_a_policy_carries_the_whole_restart_rule() -> None:
    restart = {"backoff": "1s", "limit": "2", "on_exhausted": "hold", "no_restart": ["4"], "stable_for": "9s"}
    policy = only({"command": ["x"], "restart": restart}).policy
    assert (policy.restart.backoff_s, policy.restart.limit, policy.restart.stable_for_s) == (1.0, 2, 9.0)
    assert (policy.restart.on_exhausted, policy.restart.no_restart) == (OnExhausted.HOLD, (4,))
    assert policy.restart.success == (0,)
    assert policy.startup_budget_s is None
    assert only({"command": SERVER}).policy.restart.success == ()


def test_lanes_follow_dependencies_and_stop_the_other_way_round() -> None:
    after = {"judge": {"condition": "started", "required": "false", "restart": "true"}, "corpus": "ready"}
    services = {
        "user": {"command": ["x"], "depends_on": after},
        "judge": {"command": ["x"]},
        "corpus": {"command": ["x"], "depends_on": ["judge"]},
        "alone": {"command": ["x"]},
    }
    plan = plan_for(services)
    assert plan.start_lanes == (("judge", "alone"), ("corpus",), ("user",))
    assert plan.stop_lanes == (("user",), ("corpus",), ("judge", "alone"))
    assert [service.start_lane for service in plan.services] == [2, 0, 1, 0]
    first = Dependency(service="judge", condition="started", is_required=False, wants_restart=True)
    assert plan.services[0].depends_on == (first, Dependency(service="corpus", condition="ready"))


def test_the_trainers_command_keeps_what_is_not_ours() -> None:
    argv = ("srun", "-w", "{train.nodelist}", "-N{train.count}", "awk '{print $1}'", "lr=${train.lr}")
    plan = plan_for({"a": {"command": ["x"]}}, argv=argv, nodes=SPLIT, trainer={"on": "train"})
    assert plan.trainer.argv == ("srun", "-w", "n[1-2]", "-N2", "awk '{print $1}'", "lr=${train.lr}")
    assert (plan.trainer.group, plan.trainer.stop_signal, plan.trainer.grace_s) == ("train", "TERM", 60.0)
    assert not plan.trainer.egress.is_on
    assert plan.warnings == ()


def test_a_misspelt_placeholder_of_the_trainer_is_refused_before_what_does_not_fit() -> None:
    with pytest.raises(UsageError, match=r"cannot fill \{trian.nodelist\}"):
        plan_for({"a": {"command": ["x"]}}, grant="n1", argv=("srun", "-w", "{trian.nodelist}"), nodes=SPLIT)


@pytest.mark.parametrize(("group", "count"), [("train", 1), ("env", 0)])
def test_devices_on_the_trainers_nodes_are_warned_about(group: str, count: int) -> None:
    services = {"judge": {"command": SERVER, "place": {"on": group, "gpus": 1}}, "a": {"command": ["x"]}}
    plan = plan_for(services, argv=("srun", "train"), nodes=SPLIT, trainer={"on": "train"})
    assert len(plan.warnings) == count
    assert all("judge has devices of nodes where the trainer runs" in warning for warning in plan.warnings)
    assert plan_for(services, nodes=SPLIT, trainer={"on": "train"}).warnings == ()


def test_egress_is_kept_as_written() -> None:
    rule = {"udp": "loopback", "allow": ["10.0.0.0/8:443"]}
    services = {
        "a": {"command": ["x"], "egress": rule},
        "b": {"command": ["x"], "egress": "off"},
        "c": {"command": ["x"]},
    }
    plan = plan_for(services)
    assert [service.egress for service in plan.services] == [
        Egress(udp="loopback", allow=("10.0.0.0/8:443",)),
        Egress(is_on=False),
        Egress(),
    ]


def test_the_rules_of_the_run_are_in_the_plan_and_survive_the_file() -> None:
    run = {"name": "r", "drain": "5s", "hold": "6s", "join_timeout": "7s", "orphan_grace": "8s"}
    plan = plan_for({"a": {"command": SERVER, "protocol": "tcp"}}, run=run, node={"namespace": "off"})
    assert (plan.name, plan.drain_s, plan.hold_s, plan.join_timeout_s, plan.orphan_grace_s) == ("r", 5, 6, 7, 8)
    assert not plan.wants_namespace
    assert (plan.services[0].has_port, plan.services[0].is_http) == (True, False)
    assert from_json(to_json(plan), Plan) == plan
