"""Who is chosen, who is left out, and who comes back."""

import pytest

from retinue.channel.messages import Backend, Membership, Route
from retinue.gateway.routes import RETRY_AFTER_S, STREAK, RouteTable, Slot

NOW_S = 1000.0


class Watched:
    """A table and what it announced."""

    def __init__(self) -> None:
        self.changes: list[str | None] = []
        self.table = RouteTable(on_change=self.changes.append)
        self.table.node = "n1"
        self.epoch = 0

    def publish(self, *backends: Backend, is_per_node: bool = False, epoch: int | None = None) -> bool:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        route = Route(service="judge", backends=backends, is_per_node=is_per_node)
        return self.table.apply(Membership(epoch=self.epoch, routes=(route,)), is_first=False)

    def choose(self, now_s: float = NOW_S, tried: set[Slot] | None = None, is_replayable: bool = True) -> str | None:
        slot = self.find(now_s, tried, is_replayable)
        return slot.backend.replica if slot else None

    def find(self, now_s: float = NOW_S, tried: set[Slot] | None = None, is_replayable: bool = True) -> Slot | None:
        return self.table.choose("judge", now_s, tried or set(), is_replayable)

    def slot(self, replica: str) -> Slot:
        return next(s for s in self.table.services["judge"].slots if s.backend.replica == replica)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def backend(index: int, incarnation: int = 1, node: str = "n1") -> Backend:
    return Backend(replica=f"judge/{index}", incarnation=incarnation, node=node, host="127.0.0.1", port=9000 + index)


def test_idle_backends_take_turns(watched: Watched) -> None:
    watched.publish(backend(0), backend(1), backend(2))
    assert [watched.choose() for _ in range(6)] == ["judge/0", "judge/1", "judge/2"] * 2


def test_the_backend_with_fewest_requests_in_flight_is_chosen_whoever_is_next_in_turn(watched: Watched) -> None:
    watched.publish(backend(0), backend(1), backend(2))
    for replica, count in (("judge/0", 2), ("judge/1", 1), ("judge/2", 3)):
        for _ in range(count):
            watched.table.begin(watched.slot(replica))
    assert [watched.choose() for _ in range(3)] == ["judge/1"] * 3
    watched.table.end(watched.slot("judge/0"))
    watched.table.end(watched.slot("judge/0"))
    assert watched.choose() == "judge/0"


def test_a_per_node_service_is_answered_by_the_own_node_even_when_it_is_busier(watched: Watched) -> None:
    watched.publish(backend(0, node="n2"), backend(1, node="n1"), is_per_node=True)
    watched.table.begin(watched.slot("judge/1"))
    assert [watched.choose() for _ in range(3)] == ["judge/1"] * 3


def test_a_per_node_service_goes_elsewhere_while_the_own_replica_is_left_out(watched: Watched) -> None:
    watched.publish(backend(0, node="n2"), backend(1, node="n1"), is_per_node=True)
    watched.table.drop("judge/1", 1, "exited 1")
    assert watched.choose() == "judge/0"


def test_a_stale_or_repeated_epoch_changes_nothing(watched: Watched) -> None:
    watched.publish(backend(0), epoch=7)
    assert not watched.publish(backend(1), epoch=7)
    assert not watched.publish(backend(1), epoch=6)
    assert watched.choose() == "judge/0"


def test_the_first_membership_of_a_connection_is_believed_whatever_its_epoch(watched: Watched) -> None:
    watched.publish(backend(0), epoch=7)
    route = Route(service="judge", backends=(backend(1),))
    assert watched.table.apply(Membership(epoch=1, routes=(route,)), is_first=True)
    assert watched.choose() == "judge/1"
    assert watched.publish(backend(2), epoch=2)


def test_a_dropped_replica_is_back_only_when_a_newer_epoch_lists_it_and_then_on_trial(watched: Watched) -> None:
    watched.publish(backend(0), epoch=1)
    assert watched.table.drop("judge/0", 1, "exited 1")
    assert watched.choose(NOW_S + 1000) is None
    watched.publish(backend(0), epoch=1)
    assert watched.choose(NOW_S + 1000) is None
    watched.publish(backend(0), epoch=2)
    trial = watched.find()
    assert trial is not None
    assert not trial.is_trusted
    watched.table.begin(trial)
    assert watched.choose() is None
    watched.table.answered(trial)
    assert watched.choose() == "judge/0"


def test_a_drop_of_an_older_incarnation_leaves_the_newer_one_alone(watched: Watched) -> None:
    watched.publish(backend(0, incarnation=2))
    assert not watched.table.drop("judge/0", 1, "exited 1")
    assert watched.choose() == "judge/0"


def test_a_newer_incarnation_is_a_new_backend_without_a_past(watched: Watched) -> None:
    watched.publish(backend(0))
    watched.slot("judge/0").failed(NOW_S, "refused", is_unreached=True)
    watched.publish(backend(0, incarnation=2))
    assert watched.slot("judge/0").is_trusted
    assert watched.choose() == "judge/0"


def test_only_a_whole_answer_clears_a_streak(watched: Watched) -> None:
    watched.publish(backend(0))
    slot = watched.slot("judge/0")
    for _ in range(STREAK - 1):
        assert not slot.failed(NOW_S, "reset", is_unreached=False)
    slot.answered()
    assert slot.failed(NOW_S, "reset", is_unreached=False)
    assert watched.choose() is None

    watched.publish(backend(0, incarnation=2))
    slot = watched.slot("judge/0")
    for _ in range(STREAK * 2):
        assert not slot.failed(NOW_S, "reset", is_unreached=False)
        slot.completed()


def test_one_left_out_by_sight_is_tried_after_five_seconds_one_request_at_a_time(watched: Watched) -> None:
    watched.publish(backend(0))
    slot = watched.slot("judge/0")
    assert slot.failed(NOW_S, "refused", is_unreached=True)
    assert watched.choose(NOW_S + RETRY_AFTER_S - 0.1) is None
    assert watched.table.next_trial_s("judge") == NOW_S + RETRY_AFTER_S
    assert watched.choose(NOW_S + RETRY_AFTER_S) == "judge/0"
    watched.table.begin(slot)
    assert watched.choose(NOW_S + RETRY_AFTER_S) is None
    assert slot.failed(NOW_S + 6, "reset", is_unreached=False)
    watched.table.end(slot)
    assert watched.choose(NOW_S + 10) is None
    assert watched.choose(NOW_S + 11) == "judge/0"


def test_membership_with_a_newer_epoch_does_not_shorten_the_five_seconds(watched: Watched) -> None:
    watched.publish(backend(0))
    watched.slot("judge/0").failed(NOW_S, "refused", is_unreached=True)
    watched.publish(backend(0))
    assert watched.choose(NOW_S + 1) is None


def test_a_request_that_cannot_be_replayed_is_not_the_one_that_tries(watched: Watched) -> None:
    watched.publish(backend(0), backend(1))
    watched.slot("judge/0").failed(NOW_S, "refused", is_unreached=True)
    later = NOW_S + RETRY_AFTER_S
    assert [watched.choose(later, is_replayable=False) for _ in range(3)] == ["judge/1"] * 3
    assert watched.choose(later) == "judge/0"
    watched.table.drop("judge/1", 1, "exited 1")
    assert watched.choose(later, is_replayable=False) == "judge/0"


def test_a_request_goes_where_it_has_not_failed_yet_while_there_is_such_a_place(watched: Watched) -> None:
    watched.publish(backend(0), backend(1))
    tried = {watched.slot("judge/0")}
    assert [watched.choose(tried=tried) for _ in range(3)] == ["judge/1"] * 3
    assert watched.choose(tried=tried | {watched.slot("judge/1")}) is not None


def test_the_end_of_a_trial_wakes_those_who_wait_for_it(watched: Watched) -> None:
    watched.publish(backend(0))
    slot = watched.slot("judge/0")
    watched.table.begin(slot)
    watched.table.end(slot)
    assert watched.changes == [None]
    slot.failed(NOW_S, "refused", is_unreached=True)
    watched.table.begin(slot)
    watched.table.answered(slot)
    assert watched.changes == [None, "judge"]


def test_requests_in_flight_are_counted_even_when_their_backend_was_withdrawn(watched: Watched) -> None:
    watched.publish(backend(0))
    slot = watched.slot("judge/0")
    watched.table.begin(slot)
    watched.publish()
    watched.publish(backend(0))
    assert watched.table.in_flight == {"judge": 1}
    watched.table.end(slot)
    assert watched.table.in_flight == {}
