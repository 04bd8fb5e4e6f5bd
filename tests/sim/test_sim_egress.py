"""What services were denied reaches the files, whoever dies meanwhile; nodes know each other before services start."""

from retinue.channel.messages import EgressDenied
from retinue.journal.egress import render_egress
from retinue.supervise.happenings import AgentSaid
from retinue.supervise.snapshot import build_verdict
from retinue.terms.egress import Denied
from support.world import World, build_test_plan, service


def deny(count: int, port: int = 443, replica: str = "judge/0") -> Denied:
    return Denied(replica, "tcp", "203.0.113.7", port, count, 5.0, 6.0, 77, "curl")


def build(nodes: tuple[str, ...] = ("n1",), **fields: object) -> World:
    services = [service("judge", guard="on"), service("checks", guard="exempt"), service("free", guard="off")]
    return World(build_test_plan(services, nodes=nodes), trainer_s=600.0, **fields)  # type: ignore[arg-type]


def say(world: World, *lines: Denied, node: str = "n1") -> None:
    world.handle(AgentSaid(node, EgressDenied(lines)))


def test_a_destination_is_written_when_it_is_new_and_whenever_its_count_has_doubled() -> None:
    world = build()
    world.start()
    world.run_for(20.0)
    for count in range(1, 101):
        say(world, deny(count))
    assert [line.count for line in world.denied] == [1, 2, 4, 8, 16, 32, 64]
    assert sum("EgressDenied" in note for note in world.notes) == 1
    say(world, deny(1, port=80), deny(1, replica="free/0"))
    assert sum("EgressDenied" in note for note in world.notes) == 3
    world.run.egress.write_totals()
    world.run.egress.write_totals()
    assert [line.count for line in world.denied if (line.replica, line.port) == ("judge/0", 443)][-2:] == [64, 100]
    assert {line.node for line in world.denied} == {"n1"}


def test_totals_are_the_same_however_often_they_are_heard() -> None:
    world = build()
    world.start()
    world.run_for(20.0)
    for _ in range(5):
        say(world, deny(7), deny(2, port=80))
    status = world.run.egress.build_status()
    assert (status.denied, status.destinations) == (9, 2)
    world.kill_controller()
    world.run_for(20.0)
    assert world.run.egress.build_status().denied == 0
    say(world, deny(7), deny(3, port=80))
    assert world.run.egress.build_status().denied == 10


def test_status_and_verdict_say_what_was_denied_and_what_is_not_guarded() -> None:
    world = build()
    world.nodes["n1"].guard_off = "kernel.yama.ptrace_scope is 3"
    world.start()
    world.run_for(20.0)
    say(world, *(deny(port, port=port) for port in range(1, 9)))
    verdict = build_verdict(world.run, world.run.surroundings.record, 0, world.now_utc())["egress"]
    assert verdict["denied"] == 36
    assert verdict["top"][0] == "judge/0 to 203.0.113.7:8 (8)"
    assert len(verdict["top"]) == 5
    assert verdict["services"] == {"judge": "on", "checks": "exempt", "free": "off"}
    text = render_egress(world.run.egress.build_status())
    assert "36 calls denied" in text
    assert "and 3 more" in text
    assert "off for free" in text
    assert "NOT GUARDED on n1: kernel.yama.ptrace_scope is 3" in text
    assert any("EgressGuardOff" in note for note in world.notes)


def test_an_address_is_named_before_sockets_that_look_ups_try() -> None:
    world = build()
    world.start()
    world.run_for(20.0)
    say(world, Denied("judge/0", "udp-socket", "", 0, 900, 1.0, 2.0), deny(1))
    assert world.run.egress.build_status().top == ("judge/0 to 203.0.113.7:443 (1)", "judge/0 to udp-socket (900)")


def test_a_run_without_guarded_services_does_not_talk_of_a_guard() -> None:
    world = World(build_test_plan([service("checks", guard="exempt")]))
    world.nodes["n1"].guard_off = "no seccomp"
    world.start()
    world.run_for(20.0)
    assert render_egress(world.run.egress.build_status()) == ""
    assert not any("EgressGuardOff" in note for note in world.notes)


def test_every_node_knows_all_others_before_its_first_service_starts() -> None:
    world = build(("n1", "n2", "n3"))
    for index, node in enumerate(world.nodes.values(), 1):
        node.addresses = (f"10.0.0.{index}", f"fd00::{index}")
    world.start()
    world.run_for(20.0)
    wanted = {f"10.0.0.{index}" for index in (1, 2, 3)} | {f"fd00::{index}" for index in (1, 2, 3)}
    assert set(world.nodes["n1"].reach_at_first_launch or ()) == wanted
    assert all(set(node.reach) == wanted for node in world.nodes.values())


def test_a_node_that_comes_back_with_another_address_is_made_known() -> None:
    world = build(("n1", "n2"))
    world.nodes["n1"].addresses, world.nodes["n2"].addresses = ("10.0.0.1",), ("10.0.0.2",)
    world.start()
    world.run_for(20.0)
    for node in world.nodes.values():
        node.reach.clear()
    world.nodes["n2"].addresses = ("10.0.0.22",)
    world.nodes["n2"].join()
    world.run_for(1.0)
    assert world.nodes["n1"].reach == ["10.0.0.22"]
    assert set(world.nodes["n2"].reach) == {"10.0.0.1", "10.0.0.2", "10.0.0.22"}
