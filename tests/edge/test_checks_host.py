"""A host with the real warm parent: every end of a check is one outcome and costs nobody else anything."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from checks_scenes import FAKE_WARM, ask, build_settings, judge, real_host, until

from retinue.checks import slots
from retinue.checks.host import Full
from retinue.checks.records import Limits
from retinue.checks.spare import Child
from retinue.terms.outcome import OutcomeKind

LONG = Limits(wall_s=30.0, cpu_s=30.0, memory_bytes=256 * 2**20)
SCORED, TIMED_OUT, KILLED = OutcomeKind.SCORED, OutcomeKind.TIMED_OUT, OutcomeKind.KILLED
REJECTED, INFRA = OutcomeKind.REJECTED, OutcomeKind.INFRA_FAILED


async def test_every_way_a_response_can_end_is_one_outcome_of_its_own(tmp_path: Path) -> None:
    rows = [
        ("right", SCORED, 1.0),
        ("almost", SCORED, 0.0),
        ("length 12345", SCORED, 5.0),
        ("hang", TIMED_OUT, 0.0),
        ("spin", TIMED_OUT, 0.0),
        ("exit 0", KILLED, 0.0),
        ("exit 71", KILLED, 0.0),
        ("crash", KILLED, 0.0),
        ("eat", KILLED, 0.0),
        ("raise no", KILLED, 0.0),
        ("\x00\u2028\U0001f600", SCORED, 0.0),
        ("", SCORED, 0.0),
    ]
    async with real_host(build_settings(tmp_path)) as host:
        outcomes = await judge(host, *(ask(response, rollout_id=f"r{n}") for n, (response, *_) in enumerate(rows)))
    assert [(o.outcome, o.score) for o in outcomes] == [(kind, score) for _, kind, score in rows]
    assert [o.rollout_id for o in outcomes] == [f"r{n}" for n in range(len(rows))]
    assert {(o.incarnation, o.node, o.service, o.event) for o in outcomes} == {("checks/0#1", "n1", "checks", "")}
    assert outcomes[9].reason.startswith("the verifier raised: ValueError: no (mine.py:")
    spun = outcomes[4]
    assert 0.2 < spun.cpu_s <= spun.wall_s + 0.1


async def test_what_is_wrong_with_the_request_or_the_gold_has_no_score_and_does_not_see_the_response(
    tmp_path: Path,
) -> None:
    async with real_host(build_settings(tmp_path)) as host:
        outcomes = await judge(
            host,
            ask("right", verifier="nobody"),
            ask("right", gold="wrong"),
            ask("right", gold="exit"),
            ask("right", timeout_s=0.0),
            ask("right", timeout_s=-1.0),
        )
    assert {(o.outcome, o.score) for o in outcomes} == {(REJECTED, None)}
    assert "there is no verifier 'nobody'; there are mine" in outcomes[0].reason
    assert "the gold is wrong" in outcomes[1].reason


async def test_a_hang_keeps_its_slot_and_nobody_elses(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG)) as host:
        (hung,) = host.submit([ask("hang")], "hung", 4)
        outcomes = await judge(host, *(ask("right") for _ in range(20)))
        assert {o.outcome for o in outcomes} == {SCORED}
        assert host.running_count == 1
        host.cancel(hung)
        await until("its slot", lambda: host.running_count == 0)


async def test_the_slot_of_a_killed_check_is_given_on_before_its_outcome_is_known(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, workers=1)) as host:
        killed, following = host.submit([ask("hang"), ask("hang")], "test", 8)
        had_started: list[bool] = []
        killed.outcome.add_done_callback(lambda _: had_started.append(following.task is not None))
        assert (await killed.outcome).outcome is TIMED_OUT
        await until("the callback", lambda: had_started)
        assert had_started == [True]
        host.cancel(following)


async def test_a_slot_is_given_on_though_the_killed_child_can_never_be_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process in uninterruptible sleep takes no SIGKILL: here none is ever sent.
    monkeypatch.setattr(Child, "_signal_kill", lambda child: None)
    monkeypatch.setattr(slots, "ASIDE_PER_WORKER", 0)
    async with real_host(build_settings(tmp_path, workers=1), FAKE_WARM) as host:
        await judge(host, ask("rehearsed"))
        killed, following = host.submit([ask("hang", timeout_s=0.3), ask("right")], "test", 8)
        await until("the first to run", lambda: host.watch.running)
        (first,) = (running.child for running in host.watch.running)
        async with asyncio.timeout(20):
            outcomes = [await check.outcome for check in (following, killed)]
        assert [(o.outcome, o.score) for o in outcomes] == [(SCORED, 1.0), (TIMED_OUT, 0.0)]
        assert not first.is_over
        assert Path(f"/proc/{first.pid}/status").exists()
        assert (await judge(host, ask("right")))[0].outcome is SCORED
        assert host.running_count == 0


async def test_a_callers_own_timeout_is_obeyed_and_capped_by_the_services(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path)) as host:
        short, long = await judge(host, ask("spin", timeout_s=0.2), ask("spin", timeout_s=1e9))
    assert short.outcome is TIMED_OUT
    assert short.reason.endswith("limit of 0.2 s")
    assert long.reason.endswith("limit of 1 s")
    assert long.outcome is TIMED_OUT
    assert short.wall_s < long.wall_s


async def test_ten_megabytes_arrive_whole(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG)) as host:
        (outcome,) = await judge(host, ask("length " + "é" * 5_000_000))
    assert (outcome.outcome, outcome.score) == (SCORED, 5_000_000.0)


async def test_a_warm_parent_killed_under_load_loses_no_row(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG)) as host:
        checks = host.submit([ask("wait 0.05" if n % 2 else "right") for n in range(40)], "test", 100)
        for launch in (1, 2):
            await until("checks to run", lambda: host.running_count == 2 and host.nursery.is_ready)
            await until("some to be done", lambda n=launch: sum(c.outcome.done() for c in checks) >= 5 * n)
            assert host.nursery.pid is not None
            os.kill(host.nursery.pid, signal.SIGKILL)
            await until("the next one", lambda n=launch: host.nursery.launches > n)
        outcomes = [await check.outcome for check in checks]
        assert [(o.outcome, o.score) for o in outcomes] == [(SCORED, 0.0 if n % 2 else 1.0) for n in range(40)]
        down = [entry for entry in host.ledger.read() if entry.cause == "warm_parent_down"]
        assert len(down) == 2
        assert all(entry.to_utc is not None for entry in down)


async def test_a_caller_that_goes_away_frees_what_it_held_and_what_it_waited_for(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG)) as host:
        checks = host.submit([ask("spin") for _ in range(10)], "gone", 40)
        await until("two to run", lambda: host.running_count == 2)
        for check in checks:
            host.cancel(check)
        await until("free slots", lambda: host.running_count == 0)
        assert host.queued_count == 0
        (outcome,) = await judge(host, ask("right"))
        assert outcome.outcome is SCORED
        assert host.tally.cancelled == 10


async def test_a_full_queue_refuses_a_batch_whole_and_takes_it_once_there_is_room(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG, queue=4)) as host:
        blocking = host.submit([ask("spin"), ask("spin")], "a", 8)
        await until("both to run", lambda: host.running_count == 2)
        waiting = host.submit([ask("right") for _ in range(3)], "a", 15)
        with pytest.raises(Full) as full:
            host.submit([ask("right"), ask("right")], "b", 10)
        assert 1 <= full.value.retry_after_s <= 30
        assert host.tally.refused == 2
        for check in blocking:
            host.cancel(check)
        assert {(await check.outcome).outcome for check in waiting} == {SCORED}
        assert {o.outcome for o in await judge(host, ask("right"), ask("right"))} == {SCORED}


async def test_callers_take_turns(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, workers=1)) as host:
        order: list[str] = []
        flood = host.submit([ask("right") for _ in range(30)], "flood", 150)
        quiet = host.submit([ask("right") for _ in range(3)], "quiet", 15)
        for name, checks in (("flood", flood), ("quiet", quiet)):
            for check in checks:
                check.outcome.add_done_callback(lambda _, name=name: order.append(name))
        await asyncio.gather(*(check.outcome for check in (*flood, *quiet)))
    assert order.index("quiet") <= 3
    assert [n for n, name in enumerate(order) if name == "quiet"][-1] <= 7


async def test_stopping_answers_everything_and_leaves_nothing(tmp_path: Path) -> None:
    async with real_host(build_settings(tmp_path, limits=LONG)) as host:
        running = host.submit([ask("wait 0.1"), ask("hang")], "a", 8)
        await until("both to run", lambda: host.running_count == 2)
        queued = host.submit([ask("right") for _ in range(5)], "a", 8)
        await host.drain(1.0)
        late = host.submit([ask("right")], "a", 5)
        kinds = [check.outcome.result().outcome for check in (*running, *queued, *late)]
        assert kinds == [SCORED, INFRA, *[INFRA] * 5, INFRA]
        assert {check.outcome.result().event for check in queued} == {"service stopping"}
