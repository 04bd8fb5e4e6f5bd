"""Work without a token is a failure; tokens, or nothing to do, are not: however slow or healthy the server looks."""

import pytest

from retinue.lifecycle.progress import Progress, Sample
from retinue.terms.replica import Verdict

STALL_S = 60.0


def play(*told: tuple[float, dict[str, Sample] | None]) -> list[tuple[Verdict, str]]:
    """Feed (seconds, what it told) in turn; the answers."""
    progress, answers = Progress(STALL_S, heard_s=0.0), []
    for now_s, samples in told:
        progress, verdict, why = progress.observe(samples, now_s, "no answer")
        answers.append((verdict, why))
    return answers


def one(running: float, tokens: float, waiting: float = 0.0) -> dict[str, Sample]:
    return {"": Sample(running, waiting, (tokens,))}


def test_work_without_a_token_for_a_minute_fails_and_says_what_waits() -> None:
    answers = play((0, one(3, 10)), (59, one(3, 10)), (60, one(3, 10, waiting=2)))
    assert [verdict for verdict, _ in answers] == [Verdict.PASS, Verdict.PASS, Verdict.FAIL]
    assert answers[-1][1] == "3 running, 2 waiting, and no token for 60 s"


def test_a_busy_engine_whose_tokens_advance_is_never_failed_however_seldom_it_answers() -> None:
    told: list[tuple[float, dict[str, Sample] | None]] = []
    for minute in range(60):
        told += [(minute * 115, one(500, minute)), (minute * 115 + 100, None)]
    assert {verdict for verdict, _ in play(*told)} == {Verdict.PASS, Verdict.UNKNOWN}


def test_an_idle_engine_is_fine_for_hours_and_gets_its_whole_minute_when_work_comes() -> None:
    answers = play((0, one(0, 7)), (7200, one(0, 7)), (7201, one(1, 7)), (7259, one(1, 7)), (7261, one(1, 7)))
    assert [verdict for verdict, _ in answers] == [*[Verdict.PASS] * 4, Verdict.FAIL]


def test_a_queue_that_nobody_works_on_is_as_bad_as_work_without_tokens() -> None:
    assert play((0, one(0, 7, waiting=4)), (61, one(0, 7, waiting=4)))[-1][0] is Verdict.FAIL


def test_silence_is_unknown_at_first_and_death_after_two_stalls() -> None:
    verdicts = [verdict for verdict, _ in play((0, one(1, 1)), (100, None), (119, None), (121, None))]
    assert verdicts == [Verdict.PASS, Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.FAIL]


def test_a_stuck_part_does_not_hide_behind_one_that_works() -> None:
    def both(tokens: float) -> dict[str, Sample]:
        return {"0": Sample(1, 0, (tokens,)), "1": Sample(1, 0, (5,))}

    verdict, why = play((0, both(1)), (30, both(2)), (61, both(3)))[-1]
    assert verdict is Verdict.FAIL
    assert why.startswith("part 1: ")


@pytest.mark.parametrize("told", [one(1, 5), None])
def test_whoever_slept_himself_counts_anew(told: dict[str, Sample] | None) -> None:
    progress, _, _ = Progress(STALL_S, heard_s=0.0).observe(one(1, 5), 0.0)
    progress, verdict, _ = progress.restart(500.0).observe(told, 500.0)
    assert verdict is not Verdict.FAIL
    assert progress.restart(500.0).observe(one(1, 5), 559.0)[1] is Verdict.PASS
