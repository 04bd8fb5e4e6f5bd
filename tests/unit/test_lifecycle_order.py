"""Who may start, who never will, who is stopped next."""

import pytest

from retinue.lifecycle.order import (
    find_hopeless,
    find_ready_to_start,
    find_restart_dependants,
    is_service_ready,
    next_to_stop,
)
from retinue.plan.records import Dependency, ServicePlan
from retinue.terms.replica import OnExhausted, Phase, Policy, Replica, RestartPolicy

HOLDING = Policy(restart=RestartPolicy(on_exhausted=OnExhausted.HOLD))


def service(name: str, *edges: Dependency, count: int = 1, min_ready: int = 1) -> ServicePlan:
    ids = tuple(f"{name}/{k}" for k in range(count))
    return ServicePlan(name, "command", ids, min_ready, has_port=True, depends_on=edges)


def needs(name: str, condition: str = "ready", **flags: bool) -> Dependency:
    return Dependency(name, condition, **flags)


def seats(*replicas: Replica) -> dict[str, Replica]:
    return {replica.id: replica for replica in replicas}


def at(key: str, phase: Phase = Phase.PENDING, **fields: object) -> Replica:
    return Replica(id=key, phase=phase, **fields)


JUDGE = service("judge", count=3, min_ready=2)
CUSTOMER = service("customer", needs("judge"))


def test_what_waits_for_nothing_may_start_at_once_and_nobody_else():
    replicas = seats(at("judge/0"), at("judge/1"), at("judge/2"), at("customer/0"))
    assert find_ready_to_start([CUSTOMER, JUDGE], replicas) == ("judge/0", "judge/1", "judge/2")


@pytest.mark.parametrize(
    ("phases", "may_start"),
    [
        ((Phase.READY, Phase.READY, Phase.STARTING), True),
        ((Phase.READY, Phase.UNREADY, Phase.STARTING), False),
        ((Phase.READY, Phase.FAILED, Phase.BACKOFF), False),
        ((Phase.READY, Phase.READY, Phase.FAILED), True),
    ],
)
def test_ready_means_as_many_as_min_ready(phases, may_start):
    replicas = seats(*(at(f"judge/{k}", phase) for k, phase in enumerate(phases)), at("customer/0"))
    assert ("customer/0" in find_ready_to_start([JUDGE, CUSTOMER], replicas)) is may_start
    assert is_service_ready(2, [replicas[key] for key in JUDGE.replicas]) is may_start


@pytest.mark.parametrize(
    ("dependency", "may_start"),
    [
        (at("index/0", Phase.STARTING), False),
        (at("index/0", Phase.STARTING, is_started=True), True),
        (at("index/0", Phase.UNREADY, is_started=True), True),
        (at("index/0", Phase.STOPPING, is_started=True), False),
        (at("index/0", Phase.STOPPED, is_completed=True), True),
        (at("index/0", Phase.STOPPED), False),
    ],
)
def test_started_means_that_exec_succeeded(dependency, may_start):
    services = [service("index"), service("corpus", needs("index", "started"))]
    found = find_ready_to_start(services, seats(dependency, at("corpus/0")))
    assert ("corpus/0" in found) is may_start


def test_completed_means_every_replica_whatever_min_ready_says():
    services = [service("index", count=2, min_ready=1), service("corpus", needs("index", "completed"))]
    done, running = at("index/0", Phase.STOPPED, is_completed=True), at("index/1", Phase.READY)
    assert find_ready_to_start(services, seats(done, running, at("corpus/0"))) == ()
    both = seats(done, at("index/1", Phase.STOPPED, is_completed=True), at("corpus/0"))
    assert find_ready_to_start(services, both) == ("corpus/0",)


def test_an_optional_dependency_holds_back_until_it_failed_for_good():
    services = [service("judge"), service("customer", needs("judge", is_required=False))]
    assert find_ready_to_start(services, seats(at("judge/0", Phase.BACKOFF), at("customer/0"))) == ()
    failed = seats(at("judge/0", Phase.FAILED), at("customer/0"))
    assert find_ready_to_start(services, failed) == ("customer/0",)
    assert find_hopeless(services, failed) == {}


def test_an_optional_dependency_that_can_never_start_holds_nobody_back():
    services = [service("index"), service("judge", needs("index")), service("ui", needs("judge", is_required=False))]
    replicas = seats(at("index/0", Phase.FAILED), at("judge/0"), at("ui/0"))
    assert find_ready_to_start(services, replicas) == ("ui/0",)


def test_what_runs_is_never_started_again_by_its_dependencies():
    for phase in set(Phase) - {Phase.PENDING}:
        assert find_ready_to_start([service("judge")], seats(at("judge/0", phase))) == ()


def test_what_requires_a_failed_service_is_hopeless_and_says_the_path():
    services = [service("index"), service("judge", needs("index", "completed")), service("customer", needs("judge"))]
    replicas = seats(at("index/0", Phase.FAILED, reason="exited with code 3"), at("judge/0"), at("customer/0"))
    found = find_hopeless(services, replicas)
    assert list(found) == ["judge/0", "customer/0"]
    assert found["judge/0"] == "needs index completed; index/0 is failed: exited with code 3"
    assert found["customer/0"] == f"needs judge ready; {found['judge/0']}"


def test_one_failed_replica_is_hopeless_only_when_the_rest_cannot_do():
    two_left = seats(at("judge/0", Phase.FAILED), at("judge/1"), at("judge/2", Phase.BACKOFF), at("customer/0"))
    assert find_hopeless([JUDGE, CUSTOMER], two_left) == {}
    one_left = two_left | seats(at("judge/1", Phase.STOPPED))
    assert list(find_hopeless([JUDGE, CUSTOMER], one_left)) == ["customer/0"]


def test_a_completed_service_keeps_nobody_waiting_who_asked_for_ready():
    services = [service("index"), service("corpus", needs("index", "ready"))]
    replicas = seats(at("index/0", Phase.STOPPED, is_completed=True), at("corpus/0"))
    assert find_hopeless(services, replicas) == {}
    assert find_ready_to_start(services, replicas) == ("corpus/0",)


def test_what_an_operator_may_bring_back_is_not_hopeless():
    replicas = seats(at("judge/0", Phase.FAILED, policy=HOLDING), at("customer/0"))
    assert find_hopeless([service("judge"), CUSTOMER], replicas) == {}
    assert find_ready_to_start([service("judge"), CUSTOMER], replicas) == ()


def test_only_what_waits_can_be_hopeless():
    for phase in set(Phase) - {Phase.PENDING}:
        replicas = seats(at("judge/0", Phase.FAILED), at("customer/0", phase))
        assert find_hopeless([service("judge"), CUSTOMER], replicas) == {}


# --- stop order -----------------------------------------------------------------------

LANES = (("customer",), ("judge", "checks"))
SERVICES = (service("judge", count=2), CUSTOMER, service("checks"))


def stop_seats(customer: Replica, *rest: Replica) -> dict[str, Replica]:
    usual = seats(at("judge/0", Phase.READY), at("judge/1", Phase.BACKOFF), at("checks/0", Phase.READY))
    return usual | seats(customer, *rest)


def test_what_is_called_is_not_stopped_while_a_caller_lives():
    assert next_to_stop(LANES, SERVICES, stop_seats(at("customer/0", Phase.READY))) == ("customer/0",)
    assert next_to_stop(LANES, SERVICES, stop_seats(at("customer/0", Phase.STOPPING))) == ()


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.FAILED])
def test_a_lane_is_asked_when_all_before_it_are_terminal(phase):
    replicas = stop_seats(at("customer/0", phase), at("judge/0", Phase.STOPPED))
    assert next_to_stop(LANES, SERVICES, replicas) == ("judge/1", "checks/0")


def test_a_replica_stopping_only_to_run_again_is_asked_too():
    replicas = stop_seats(at("customer/0", Phase.STOPPING, wants_relaunch=True))
    assert next_to_stop(LANES, SERVICES, replicas) == ("customer/0",)


def test_a_service_that_no_lane_names_is_stopped_last_and_not_forgotten():
    lanes = (("customer",), ("checks",))
    replicas = stop_seats(at("customer/0", Phase.STOPPED), at("checks/0", Phase.STOPPED))
    assert next_to_stop(lanes, SERVICES, replicas) == ("judge/0", "judge/1")
    over = seats(*(at(key, Phase.STOPPED) for key in replicas))
    assert next_to_stop(lanes, SERVICES, over) == ()


def test_only_those_who_asked_for_it_are_restarted_with_their_dependency():
    services = [
        service("judge"),
        service("customer", needs("judge", wants_restart=True)),
        service("ui", needs("judge"), needs("customer", wants_restart=True)),
    ]
    assert find_restart_dependants("judge", services) == ("customer",)
    assert find_restart_dependants("customer", services) == ("ui",)
    assert find_restart_dependants("ui", services) == ()


def test_no_minimum_is_always_ready():
    assert is_service_ready(0, [at("judge/0", Phase.FAILED)])
    assert not is_service_ready(1, [at("judge/0", Phase.UNREADY)])
