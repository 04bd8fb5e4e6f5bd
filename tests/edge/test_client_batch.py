"""Many checks over streams that break, stall and refuse: every row exactly once, none a number that is not one."""

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from client_scenes import Asked, Server, answer_all, build_head, busy, hang, in_turn, scored, serving, typed, until

from retinue.client import Outcome, OutcomeKind, Retinue
from retinue.client.batch import ROWS_MAX, STREAMS_MAX
from retinue.client.patience import INFRA_MAX


def build_rows(count: int) -> list[dict[str, Any]]:
    return [{"verifier": f"v{index}", "response": "4", "rollout_id": f"r{index}"} for index in range(count)]


async def ask(server: Server, count: int, **more: Any) -> dict[int, Outcome]:
    """Ask rows, prove that each comes once, and return them by index."""
    async with Retinue(server.url) as r:
        found = [pair async for pair in r.check_many(build_rows(count), **{"deadline_s": 20.0, **more})]
    assert sorted(index for index, _ in found) == list(range(count))
    return dict(found)


def assert_scored(found: dict[int, Outcome]) -> None:
    """Every row has its own result, not a neighbour's."""
    wrong = [index for index, one in found.items() if (one.score, one.reason) != (1.0, f"v{index}")]
    assert wrong == []


async def test_a_huge_batch_gives_each_row_its_own_result_with_few_in_flight() -> None:
    async with serving(answer_all) as server:
        found = await ask(server, 5000)
        assert_scored(found)
        assert [found[index].rollout_id for index in (0, 4999)] == ["r0", "r4999"]
        assert max(len(asked.rows) for asked in server.asked) <= ROWS_MAX
        assert server.connections <= STREAMS_MAX


async def test_an_empty_list_asks_nothing() -> None:
    async with serving(answer_all) as server, asyncio.timeout(10):
        assert await ask(server, 0) == {}
    assert server.asked == []


async def test_a_result_is_handed_on_while_the_stream_goes_on() -> None:
    go_on = asyncio.Event()

    async def slowly(asked: Asked) -> None:
        await asked.open_stream()
        await asked.send_row(1, reason="v1")
        await go_on.wait()
        await asked.send_row(0, reason="v0")
        await asked.end_stream()

    async with serving(slowly) as server, Retinue(server.url) as r, asyncio.timeout(20):
        order = []
        async for index, _ in r.check_many(build_rows(2)):
            order.append(index)
            go_on.set()
    assert order == [1, 0]


async def test_a_broken_stream_is_resumed_without_the_rows_that_it_answered() -> None:
    async def break_after_three(asked: Asked) -> None:
        await asked.open_stream()
        for index in (5, 0, 2):
            await asked.send_row(index, reason=asked.rows[index]["verifier"])
        asked.cut()

    async with serving(in_turn(break_after_three, answer_all)) as server:
        assert_scored(await ask(server, 8))
    again = [row["verifier"] for asked in server.asked[1:] for row in asked.rows]
    assert sorted(again) == ["v1", "v3", "v4", "v6", "v7"]


async def test_a_stream_that_ends_cleanly_but_short_is_resumed_too() -> None:
    async def forget_one(asked: Asked) -> None:
        await asked.open_stream()
        await asked.send_row(0, reason="v0")
        await asked.end_stream()

    async with serving(in_turn(forget_one, answer_all)) as server:
        assert_scored(await ask(server, 2))
    assert [row["verifier"] for row in server.asked[1].rows] == ["v1"]


async def test_lines_cut_at_every_byte_are_read_as_they_were_written() -> None:
    async def one_byte_at_a_time(asked: Asked) -> None:
        await asked.open_stream()
        text = "".join(
            json.dumps({"index": index, **scored(reason=row["verifier"], event="é\U0001f600")}, ensure_ascii=False)
            + "\n"
            for index, row in enumerate(asked.rows)
        ).encode()
        for byte in text:
            await asked.write(b"1\r\n%c\r\n" % byte)
        await asked.end_stream()

    async with serving(one_byte_at_a_time) as server:
        found = await ask(server, 9)
    assert_scored(found)
    assert found[8].event == "é\U0001f600"


async def test_a_row_that_never_reports_is_given_up_alone() -> None:
    async def all_but_one(asked: Asked) -> None:
        if any(row["verifier"] == "v3" for row in asked.rows):
            await asked.open_stream()
            for index, row in enumerate(asked.rows):
                if row["verifier"] != "v3":
                    await asked.send_row(index, reason=row["verifier"])
            await hang(asked)
        await asked.stream_all()

    async with serving(all_but_one) as server:
        found = await ask(server, 20, deadline_s=1.5)
        await server.until_closed()
    lost = found.pop(3)
    assert_scored(found)
    assert (lost.outcome, lost.score, lost.event) == (OutcomeKind.INFRA_FAILED, None, "deadline passed")
    assert (lost.rollout_id, lost.verifier, lost.service) == ("r3", "v3", "checks")


async def test_without_a_deadline_silence_ends_the_call_and_outcomes_prolong_it() -> None:
    rows = [{**row, "timeout_s": 0.1} for row in build_rows(3)]

    async def one_then_silence(asked: Asked) -> None:
        await asked.open_stream()
        await asked.send_row(1)
        await hang(asked)

    async with serving(one_then_silence) as server, Retinue(server.url, hold_s=0.2) as r, asyncio.timeout(20):
        kinds = {index: outcome.outcome async for index, outcome in r.check_many(rows)}
    assert kinds == {0: OutcomeKind.INFRA_FAILED, 1: OutcomeKind.SCORED, 2: OutcomeKind.INFRA_FAILED}


async def test_a_queue_smaller_than_the_batch_is_met_by_smaller_batches() -> None:
    async def take_three_at_most(asked: Asked) -> None:
        await (answer_all if len(asked.rows) <= 3 else busy("0"))(asked)

    async with serving(take_three_at_most) as server:
        assert_scored(await ask(server, 40))


async def test_one_row_that_is_unreadable_does_not_cost_its_neighbours() -> None:
    async def choke_on_five(asked: Asked) -> None:
        if any(row["verifier"] == "v5" for row in asked.rows):
            await asked.answer(400, {"error": "cannot read checks[5]"})
        else:
            await answer_all(asked)

    async with serving(choke_on_five) as server:
        found = await ask(server, 8)
    wrong = found.pop(5)
    assert_scored(found)
    assert (wrong.outcome, wrong.score, wrong.rollout_id) == (OutcomeKind.REJECTED, None, "r5")


async def test_a_row_that_breaks_every_server_ends_alone_and_the_others_are_scored() -> None:
    async def die_of_two(asked: Asked) -> None:
        if any(row["verifier"] == "v2" for row in asked.rows):
            asked.cut()
        else:
            await answer_all(asked)

    async with serving(die_of_two) as server:
        found = await ask(server, 16, deadline_s=4.0)
    assert found.pop(2).outcome is OutcomeKind.INFRA_FAILED
    assert_scored(found)


async def test_an_outage_after_the_hold_ends_every_row_without_holding_each_again() -> None:
    async with serving(in_turn(answer_all, typed("retinue_unavailable"))) as server:
        found = await ask(server, 2000)
    kinds = [one.outcome for one in found.values()]
    assert kinds.count(OutcomeKind.SCORED) == len(server.asked[0].rows)
    assert kinds.count(OutcomeKind.INFRA_FAILED) == 2000 - len(server.asked[0].rows)
    assert {one.event for one in found.values()} == {"", "no replica ready"}
    assert len(server.asked) <= STREAMS_MAX + 1


async def test_rows_that_the_service_could_not_do_are_sent_again_alone_and_then_believed() -> None:
    async def fail_seven(asked: Asked) -> None:
        await asked.open_stream()
        for index, row in enumerate(asked.rows):
            ours = scored(None, "infra_failed", event="warm parent died")
            await asked.send_row(index, reason=row["verifier"], **(ours if row["verifier"] == "v7" else {}))
        await asked.end_stream()

    async with serving(fail_seven) as server:
        found = await ask(server, 8)
    failed = found.pop(7)
    assert_scored(found)
    assert (failed.outcome, failed.score, failed.event) == (OutcomeKind.INFRA_FAILED, None, "warm parent died")
    assert [len(asked.rows) for asked in server.asked] == [8] + [1] * INFRA_MAX


@pytest.mark.parametrize("lines", [[b'{"index": 0}'], [b"half a li"], [7], [-1], [0, 0]])
async def test_a_line_that_is_nobodys_result_is_never_a_score_and_no_row_comes_twice(lines: list[bytes | int]) -> None:
    async def lie(asked: Asked) -> None:
        await asked.open_stream()
        for line in lines:
            if isinstance(line, int):
                await asked.send_row(line, reason="v0")
            else:
                await asked.write(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))
        await asked.end_stream()

    async with serving(in_turn(lie, answer_all)) as server:
        assert_scored(await ask(server, 2))


async def test_leaving_the_loop_early_ends_the_streams() -> None:
    async def one_then_hang(asked: Asked) -> None:
        await asked.open_stream()
        await asked.send_row(0)
        await hang(asked)

    async with serving(one_then_hang) as server, Retinue(server.url) as r:
        async with aclosing(r.check_many(build_rows(30))) as results:  # type: ignore[type-var]
            async for _ in results:
                break
        await server.until_closed()


async def test_a_cancelled_batch_closes_its_connections() -> None:
    async with serving(hang) as server, Retinue(server.url) as r:

        async def consume() -> None:
            async for _ in r.check_many(build_rows(30)):
                pass

        task = asyncio.create_task(consume())
        await until(lambda: len(server.asked) == 4, "all streams are open")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until_closed()


async def test_a_service_without_batches_rejects_every_row_with_its_words() -> None:
    async def not_found(asked: Asked) -> None:
        await asked.write(build_head(404, {"Content-Length": "9"}) + b"not found")

    async with serving(not_found) as server:
        found = await ask(server, 100)
    assert {(one.outcome, one.score, one.reason) for one in found.values()} == {
        (OutcomeKind.REJECTED, None, "checks answered 404: not found")
    }


async def test_one_wrong_row_raises_before_anything_is_sent_and_is_named() -> None:
    async with serving(answer_all) as server, Retinue(server.url) as r:
        with pytest.raises(TypeError, match="row 2: unknown key 'golden'"):
            r.check_many([*build_rows(2), {"verifier": "math", "response": "4", "golden": 1}])
    assert server.connections == 0
