"""How long a client goes on trying: doubling, spread, Retry-After, and when it stops."""

import pytest

from retinue.client.patience import (
    INFRA_MAX,
    LOST_MAX,
    UNREACHED_S,
    WAIT_MAX_S,
    WAIT_S,
    Again,
    Patience,
    Trouble,
)

BROKEN = Again(Trouble.BROKEN, "connection closed")
UNREACHED = Again(Trouble.UNREACHED, "connection refused")


def never_less() -> float:
    return 0.0


def nearly_one() -> float:
    return 0.999


def waits(patience: Patience, again: Again, count: int, now_s: float = 0.0) -> list[float | None]:
    return [patience.decide_wait(again, now_s) for _ in range(count)]


def test_waits_double_up_to_a_limit_for_ever() -> None:
    found = waits(Patience(nearly_one), BROKEN, 2000)
    assert found[:3] == pytest.approx([WAIT_S, 2 * WAIT_S, 4 * WAIT_S], rel=0.01)
    assert found[-1] == pytest.approx(WAIT_MAX_S, rel=0.01)


def test_chance_spreads_a_wait_over_its_upper_half() -> None:
    least, most = waits(Patience(never_less), BROKEN, 1), waits(Patience(nearly_one), BROKEN, 1)
    assert (least, most) == ([pytest.approx(WAIT_S / 2)], [pytest.approx(WAIT_S, rel=0.01)])


def test_something_that_came_starts_the_waits_anew() -> None:
    patience = Patience(nearly_one)
    waits(patience, BROKEN, 10)
    patience.progressed()
    assert patience.decide_wait(BROKEN, 0.0) == pytest.approx(WAIT_S, rel=0.01)


@pytest.mark.parametrize("chance", [never_less, nearly_one])
@pytest.mark.parametrize("after_s", [0.0, 0.5, 7.0, 3600.0])
def test_a_retry_after_is_never_undercut_and_overshot_by_a_second_at_most(after_s: float, chance: object) -> None:
    patience = Patience(chance)  # type: ignore[arg-type]
    waits(patience, BROKEN, 5)
    wait_s = patience.decide_wait(Again(Trouble.BUSY, "busy", after_s=after_s), 0.0)
    assert wait_s is not None
    assert after_s <= wait_s <= after_s + 1.0


def test_a_listener_that_refused_everything_for_a_while_is_given_up() -> None:
    patience = Patience(never_less)
    assert patience.decide_wait(UNREACHED, 100.0) is not None
    assert patience.decide_wait(UNREACHED, 100.0 + UNREACHED_S - 1) is not None
    assert patience.decide_wait(UNREACHED, 100.0 + UNREACHED_S) is None


@pytest.mark.parametrize("is_row", [True, False])
def test_one_connection_in_between_forgives_all_refusals(is_row: bool) -> None:
    patience = Patience(never_less)
    patience.decide_wait(UNREACHED, 100.0)
    if is_row:
        patience.progressed()
    else:
        patience.decide_wait(BROKEN, 101.0)
    assert patience.decide_wait(UNREACHED, 100.0 + UNREACHED_S) is not None


def test_a_request_lost_with_its_replica_again_and_again_is_given_up() -> None:
    found = waits(Patience(never_less), Again(Trouble.LOST, "replica lost"), LOST_MAX)
    assert [wait_s is None for wait_s in found] == [False] * (LOST_MAX - 1) + [True]


def test_losses_with_something_else_between_are_not_in_a_row() -> None:
    patience = Patience(never_less)
    for _ in range(10):
        assert patience.decide_wait(Again(Trouble.LOST, "replica lost"), 0.0) is not None
        assert patience.decide_wait(BROKEN, 0.0) is not None


def test_what_the_service_itself_could_not_do_is_believed_in_the_end() -> None:
    found = waits(Patience(never_less), Again(Trouble.FAILED, "service stopping"), INFRA_MAX + 1)
    assert [wait_s is None for wait_s in found] == [False] * INFRA_MAX + [True]
