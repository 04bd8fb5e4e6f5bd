"""A host whose warm parent or children fail in ways that the real ones do not: a fake takes their place."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from checks_scenes import FAKE_WARM, ask, build_settings, judge, real_host, until

from retinue.checks import nursery, spare
from retinue.checks.records import Limits
from retinue.terms.outcome import OutcomeKind

LONG = Limits(wall_s=30.0, cpu_s=30.0, memory_bytes=256 * 2**20)
SCORED, TIMED_OUT, KILLED = OutcomeKind.SCORED, OutcomeKind.TIMED_OUT, OutcomeKind.KILLED
REJECTED, INFRA = OutcomeKind.REJECTED, OutcomeKind.INFRA_FAILED


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ("forge", "a result without the seal"),
        ("babble", "an unreadable answer"),
        ("flood", "an answer of 2147483648 bytes"),
        ("exit 0", "without a result"),
        ("raise-signal 11", "segmentation fault"),
    ],
)
async def test_a_child_that_does_not_keep_to_the_protocol_scores_nothing(
    tmp_path: Path, response: str, words: str
) -> None:
    async with real_host(build_settings(tmp_path), FAKE_WARM) as host:
        hostile, honest = await judge(host, ask(response), ask("right"))
    assert (hostile.outcome, hostile.score) == (KILLED, 0.0)
    assert words in hostile.reason
    assert (honest.outcome, honest.score) == (SCORED, 1.0)


async def test_a_child_that_closes_its_end_and_goes_on_is_killed_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare, "SETTLE_S", 0.1)
    async with real_host(build_settings(tmp_path, limits=LONG), FAKE_WARM) as host:
        (outcome,) = await judge(host, ask("deaf"))
    assert (outcome.outcome, outcome.score) == (KILLED, 0.0)
    assert "closed its end" in outcome.reason


async def test_a_second_result_is_never_read(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path), FAKE_WARM) as host:
        outcomes = await judge(host, *(ask("twice") for _ in range(10)), ask("right"))
    assert {(o.outcome, o.score) for o in outcomes[:-1]} == {(SCORED, 0.0)}
    assert outcomes[-1].score == 1.0


async def test_a_response_that_kills_the_warm_parent_is_tried_once_more_alone_and_then_scores_zero(
    tmp_path: Path,
) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG, workers=4), FAKE_WARM) as host:
        release = tmp_path / "release"
        beside = host.submit([ask(f"wait-for {release}") for _ in range(2)], "innocent", 40)
        await until("two innocents to run", lambda: host.running_count == 2)
        hostile = host.submit([ask("kill-warm"), ask("kill-warm")], "hostile", 18)
        await until("all to be suspects", lambda: host.tally.retried_alone == 4)
        release.touch()
        outcomes = [await check.outcome for check in (*beside, *hostile)]
        assert [(o.outcome, o.score) for o in outcomes] == [(SCORED, 0.0)] * 2 + [(KILLED, 0.0)] * 2
        assert "twice: the warm parent died under this check" in outcomes[2].reason
        assert {o.event for o in outcomes} == {""}
        (after,) = await judge(host, ask("right"))
        assert after.outcome is SCORED


async def test_a_child_killed_from_outside_once_is_judged_again_and_keeps_its_score(tmp_path: Path) -> None:
    release = tmp_path / "release"
    async with real_host(build_settings(tmp_path, limits=LONG), FAKE_WARM) as host:
        (check,) = host.submit([ask(f"wait-for {release}", gold=f"wait-for {release}")], "a", 10)
        await until("the response to be seen", lambda: Path(f"{release}.started").exists())
        (running,) = host.watch.running
        os.kill(running.child.pid, signal.SIGKILL)
        release.touch()
        outcome = await check.outcome
    assert (outcome.outcome, outcome.score) == (SCORED, 1.0)
    assert host.tally.retried_alone == 1


async def test_a_response_whose_child_is_killed_each_time_scores_zero(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path), FAKE_WARM) as host:
        (outcome,) = await judge(host, ask("raise-signal 9"))
    assert (outcome.outcome, outcome.score) == (KILLED, 0.0)


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("prepare-exit 0", REJECTED),
        ("prepare-raise-signal 11", REJECTED),
        ("prepare-babble", REJECTED),
        ("prepare-hang", REJECTED),
        ("prepare-raise-signal 9", INFRA),
        ("prepare-kill-warm", INFRA),
        ("wrong", REJECTED),
    ],
)
async def test_trouble_before_the_response_was_seen_has_no_score(tmp_path: Path, gold: str, kind: OutcomeKind) -> None:
    async with real_host(build_settings(tmp_path), FAKE_WARM) as host:
        host.watch.pressure.short_between = lambda from_s, to_s: 0.0  # type: ignore[method-assign]
        (outcome,) = await judge(host, ask("right", gold=gold))
    assert (outcome.outcome, outcome.score) == (kind, None)
    assert bool(outcome.event) == (kind is INFRA)


async def test_gold_that_is_slow_only_while_the_node_is_short_is_not_called_wrong(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=Limits(wall_s=0.2, cpu_s=0.2)), FAKE_WARM) as host:
        host.watch.pressure.short_between = lambda from_s, to_s: to_s - from_s  # type: ignore[method-assign]
        (outcome,) = await judge(host, ask("right", gold="prepare-hang"))
    assert (outcome.outcome, outcome.score) == (INFRA, None)
    assert "while the node was short" in outcome.reason


async def test_a_wall_limit_stretches_three_times_while_the_node_is_short_and_a_cpu_limit_does_not(
    tmp_path: Path,
) -> None:
    async with real_host(build_settings(tmp_path, limits=Limits(wall_s=0.4, cpu_s=0.4)), FAKE_WARM) as host:
        host.watch.pressure.short_between = lambda from_s, to_s: to_s - from_s  # type: ignore[method-assign]
        hung, spun = await judge(host, ask("hang"), ask("spin"))
    assert hung.outcome is spun.outcome is TIMED_OUT
    assert hung.wall_s >= 1.2
    assert "wall" in hung.reason
    assert "CPU" in spun.reason or spun.wall_s >= 1.2


async def test_checks_wait_for_a_warm_parent_only_so_long_and_then_say_whose_fault_it_is(tmp_path: Path) -> None:
    settings = build_settings(tmp_path, patience_s=0.3)
    async with real_host(settings, ("/nonexistent/warm",), waits=False) as host:
        outcomes = await judge(host, *(ask("right") for _ in range(20)))
        assert {(o.outcome, o.score, o.event) for o in outcomes} == {(INFRA, None, "no warm parent")}
        assert "cannot be started: No such file" in outcomes[0].reason
        assert not host.nursery.is_ready


async def test_a_verifier_that_cannot_be_imported_makes_it_not_ready_and_says_which(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path), (*FAKE_WARM, "--broken"), waits=False) as host:
        await until("the cause", lambda: host.nursery.is_broken)
        assert host.nursery.cause == "verifier 'mine' cannot be used: ImportError: no"
        assert not host.nursery.is_ready


@pytest.mark.parametrize(("flag", "limit"), [("--silent", "START_LIMIT_S"), ("--barren", "STUCK_S")])
async def test_a_warm_parent_that_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, limit: str
) -> None:
    monkeypatch.setattr(nursery, limit, 0.3)
    monkeypatch.setattr(nursery, "LOOK_S", 0.05)
    async with real_host(build_settings(tmp_path), (*FAKE_WARM, flag), waits=False) as host:
        (check,) = host.submit([ask("right")], "a", 5)
        await until("a second launch", lambda: host.nursery.launches >= 2)
        host.nursery._argv = FAKE_WARM
        assert (await check.outcome).outcome is SCORED


async def test_an_idle_spare_that_dies_is_noticed_before_it_is_used(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path), FAKE_WARM) as host:
        link: Any = host.nursery._link
        for child in list(link.spares):
            os.kill(child.pid, signal.SIGKILL)
        await until("fresh ones", lambda: link.spares and not any(child.is_over for child in link.spares))
        outcomes = await asyncio.wait_for(judge(host, *(ask("right") for _ in range(10))), 30)
    assert {o.outcome for o in outcomes} == {SCORED}
