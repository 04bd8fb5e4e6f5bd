"""Silence is loss only while we were listening ourselves."""

from retinue.channel.silence import Silence


def tick(silence: Silence, start: int, stop: int, lag_s: float = 0.0) -> dict[int, tuple[str, ...]]:
    """Call find_lost once a second; return what it named, by second."""
    named = {now: silence.find_lost(float(now), lag_s) for now in range(start, stop)}
    return {now: nodes for now, nodes in named.items() if nodes}


def test_a_silent_node_is_lost_once_and_the_talking_one_is_not() -> None:
    silence = Silence()
    silence.hear("n1", 0.0)
    silence.hear("n2", 0.0)
    lost = {}
    for now in range(1, 30):
        silence.hear("n2", now - 0.5)
        lost |= tick(silence, now, now + 1)
    assert lost == {10: ("n1",)}


def test_a_node_never_heard_of_is_not_lost() -> None:
    assert tick(Silence(), 0, 100) == {}


def test_a_node_we_expect_nothing_from_is_not_lost() -> None:
    silence = Silence()
    silence.hear("n1", 0.0)
    silence.forget("n1")
    silence.forget("n2")
    assert tick(silence, 0, 100) == {}


def test_silence_during_our_own_lag_does_not_count() -> None:
    silence = Silence()
    silence.hear("n1", 0.0)
    assert tick(silence, 1, 60, lag_s=1.0) == {}
    assert tick(silence, 60, 80) == {69: ("n1",)}


def test_lag_just_below_the_limit_still_counts() -> None:
    silence = Silence()
    silence.hear("n1", 0.0)
    assert tick(silence, 1, 20, lag_s=0.99) == {10: ("n1",)}


def test_after_a_stopped_controller_continues_every_timer_restarts() -> None:
    silence = Silence()
    silence.hear("n1", 0.0)
    silence.hear("n2", 3.0)
    assert tick(silence, 1, 6) == {}
    # SIGSTOP for five minutes; the lag was not measured yet, only the gap between calls shows it.
    assert silence.find_lost(306.0, 0.0) == ()
    assert tick(silence, 307, 330) == {316: ("n1", "n2")}


def test_a_node_that_came_back_after_being_lost_is_watched_again() -> None:
    silence = Silence()
    silence.hear("n1", 0.0)
    assert tick(silence, 1, 20) == {10: ("n1",)}
    silence.hear("n1", 20.0)
    assert tick(silence, 20, 40) == {30: ("n1",)}
