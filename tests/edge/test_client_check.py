"""One check through real sockets: every way it can end, and what is left open."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from client_scenes import Asked, Server, answer_one, busy, hang, in_turn, scored, serving, typed, until

from retinue.client import Outcome, OutcomeKind, Retinue, http
from retinue.client.http import Connection, Target, Unreached
from retinue.client.patience import INFRA_MAX, LOST_MAX


async def ask(server: Server, **more: Any) -> Outcome:
    async with Retinue(server.url) as r:
        return await r.check("math", **{"response": "4", "deadline_s": 20.0, **more})


async def test_a_check_says_what_it_is_and_who_asks() -> None:
    async with serving(answer_one) as server, Retinue(server.url + "/checks", token="secret") as r:
        outcome = await r.check("math", response="4", gold=[4], args={"a": 1}, timeout_s=2, rollout_id="r7")
    assert (outcome.outcome, outcome.score, outcome.incarnation) == (OutcomeKind.SCORED, 1.0, "checks/0#1")
    assert (outcome.rollout_id, outcome.service) == ("r7", "checks")
    [asked] = server.asked
    assert (asked.method, asked.path) == ("POST", "/checks/v1/check")
    wanted = {"verifier": "math", "response": "4", "gold": [4], "args": {"a": 1}, "timeout_s": 2, "rollout_id": "r7"}
    assert asked.json == wanted
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["x-retinue-caller"].startswith(socket.gethostname() + ":")


async def test_a_full_service_is_asked_again_not_before_its_retry_after() -> None:
    asked_s: list[float] = []

    async def note(asked: Asked) -> None:
        asked_s.append(asyncio.get_running_loop().time())
        await in_turn(busy("0.2"), answer_one)(asked)

    async with serving(note) as server:
        assert (await ask(server)).score == 1.0
    assert len(asked_s) == 2
    assert asked_s[1] - asked_s[0] >= 0.2


async def test_a_service_that_stays_full_past_the_deadline_is_our_shortage_and_no_zero() -> None:
    async with serving(busy("3600")) as server:
        outcome = await ask(server, deadline_s=0.3, rollout_id="r1")
    assert (outcome.outcome, outcome.score, outcome.event) == (OutcomeKind.INFRA_FAILED, None, "busy")
    assert (outcome.rollout_id, outcome.verifier, outcome.service) == ("r1", "math", "checks")
    assert outcome.node == socket.gethostname()
    assert len(server.asked) == 1


async def test_a_gateway_that_held_in_vain_is_believed_at_once() -> None:
    async with serving(typed("retinue_unavailable")) as server:
        outcome = await ask(server)
    assert (outcome.outcome, outcome.score) == (OutcomeKind.INFRA_FAILED, None)
    assert (outcome.service, outcome.event, outcome.node) == ("checks", "no replica ready", socket.gethostname())
    assert len(server.asked) == 1


async def test_a_check_lost_with_its_replica_is_sent_again_a_few_times() -> None:
    async with serving(in_turn(typed("retinue_bad_gateway"), answer_one)) as server:
        assert (await ask(server)).score == 1.0
    async with serving(typed("retinue_bad_gateway")) as server:
        outcome = await ask(server)
    assert (outcome.outcome, outcome.event) == (OutcomeKind.INFRA_FAILED, "replica lost")
    assert len(server.asked) == LOST_MAX


async def test_a_409_of_the_service_itself_is_not_an_outage() -> None:
    async def conflict(asked: Asked) -> None:
        await asked.answer(409, {"error": "conflict"})

    async with serving(conflict) as server:
        assert (await ask(server)).outcome is OutcomeKind.REJECTED


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 422, 302, 501])
async def test_a_request_that_is_wrong_is_rejected_once_and_never_a_number(status: int) -> None:
    async def refuse(asked: Asked) -> None:
        await asked.answer(status, {"error": {"type": "retinue_x", "message": "because of `verifier`"}})

    async with serving(refuse) as server:
        outcome = await ask(server)
    assert (outcome.outcome, outcome.score) == (OutcomeKind.REJECTED, None)
    assert "because of `verifier`" in outcome.reason
    assert len(server.asked) == 1


async def test_a_refused_connection_is_tried_until_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = asyncio.Event()
    real = http.connect

    async def connect(target: Target) -> Connection:
        try:
            return await real(target)
        except Unreached:
            refused.set()
            raise

    monkeypatch.setattr(http, "connect", connect)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        async with Retinue(f"http://127.0.0.1:{reserved.getsockname()[1]}") as r, asyncio.timeout(20):
            waiting = asyncio.create_task(r.check("math", response="4"))
            await refused.wait()
            async with serving(answer_one, sock=reserved):
                assert (await waiting).score == 1.0


async def test_a_port_that_nobody_listens_on_is_infra_failed_and_says_so() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        async with Retinue(f"http://127.0.0.1:{reserved.getsockname()[1]}") as r:
            outcome = await r.check("math", response="4", deadline_s=0.2)
    assert (outcome.outcome, outcome.score, outcome.event) == (OutcomeKind.INFRA_FAILED, None, "connection refused")


async def test_an_answer_that_never_comes_ends_at_the_deadline_with_its_connection() -> None:
    async with serving(hang) as server:
        outcome = await ask(server, deadline_s=0.2)
        await server.until_closed()
    assert (outcome.outcome, outcome.score, outcome.event) == (OutcomeKind.INFRA_FAILED, None, "deadline passed")
    assert outcome.wall_s >= 0.2


async def test_a_cancelled_check_closes_its_connection_so_that_the_service_can_stop() -> None:
    async with serving(hang) as server, Retinue(server.url) as r:
        task = asyncio.create_task(r.check("math", response="4"))
        await until(lambda: server.asked, "the request arrived")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.until_closed()


async def test_two_checks_in_a_row_use_one_connection() -> None:
    async with serving(answer_one) as server, Retinue(server.url) as r:
        assert [(await r.check("math", response=text)).score for text in "ab"] == [1.0, 1.0]
    assert [asked.connection for asked in server.asked] == [0, 0]


async def test_a_server_that_closed_the_kept_connection_is_connected_again() -> None:
    async def answer_and_leave(asked: Asked) -> None:
        await answer_one(asked)
        asked.writer.close()
        raise ConnectionResetError

    async with serving(answer_and_leave) as server, Retinue(server.url) as r:
        for text in "abc":
            assert (await r.check("math", response=text, deadline_s=20)).score == 1.0
    assert [asked.json["response"] for asked in server.asked] == ["a", "b", "c"]
    assert server.connections == 3


async def test_a_kept_connection_that_breaks_under_the_request_costs_nothing() -> None:
    async def cut(asked: Asked) -> None:
        asked.cut()

    async with serving(in_turn(answer_one, cut, answer_one)) as server, Retinue(server.url) as r:
        assert (await r.check("math", response="a")).score == 1.0
        assert (await r.check("math", response="b")).score == 1.0
    assert [asked.connection for asked in server.asked] == [0, 0, 1]


async def test_an_infra_failed_of_the_service_is_asked_again_and_then_believed() -> None:
    async def stopping(asked: Asked) -> None:
        await asked.answer(200, scored(None, "infra_failed", event="service stopping", node="n7"))

    async with serving(in_turn(stopping, answer_one)) as server:
        assert (await ask(server)).score == 1.0
    async with serving(stopping) as server:
        outcome = await ask(server)
    assert (outcome.outcome, outcome.event, outcome.node) == (OutcomeKind.INFRA_FAILED, "service stopping", "n7")
    assert len(server.asked) == INFRA_MAX + 1


async def test_a_timed_out_check_is_an_answer_and_never_asked_again() -> None:
    async def late(asked: Asked) -> None:
        await asked.answer(200, scored(0.0, "timed_out", reason="ran past 10 s"))

    async with serving(late) as server:
        outcome = await ask(server)
    assert (outcome.outcome, outcome.score, outcome.reason) == (OutcomeKind.TIMED_OUT, 0.0, "ran past 10 s")
    assert len(server.asked) == 1


async def test_a_unix_socket_does_as_well(tmp_path: Path) -> None:
    async with serving(answer_one, unix=str(tmp_path / "checks.sock")) as server:
        assert (await ask(server)).score == 1.0
        assert server.asked[0].headers["host"] == "localhost"


async def test_a_proxy_of_the_environment_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(hang) as proxy, serving(answer_one) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert (await ask(server)).score == 1.0
        assert proxy.connections == 0


async def test_odd_text_arrives_as_it_was() -> None:
    text = 'nul \0, surrogate \ud800, smile \U0001f600, newline \n, quote "'
    async with serving(answer_one) as server:
        assert (await ask(server, response=text)).score == 1.0
    assert server.asked[0].json["response"] == text


async def test_a_response_of_ten_million_bytes_arrives_whole() -> None:
    text = "7" * 10_000_000
    async with serving(answer_one) as server:
        assert (await ask(server, response=text)).score == 1.0
    assert server.asked[0].json["response"] == text


async def test_a_response_too_long_for_the_service_is_the_policys_fault_and_gold_that_is_is_not() -> None:
    async def too_large(asked: Asked) -> None:
        await asked.answer(413, {"error": "too large"})

    async with serving(too_large) as server:
        outcome = await ask(server, response="x" * 5000)
        assert (outcome.outcome, outcome.score) == (OutcomeKind.KILLED, 0.0)
        outcome = await ask(server, gold="x" * 5000)
        assert (outcome.outcome, outcome.score) == (OutcomeKind.REJECTED, None)
        outcome = await ask(server, response="x" * (17 * 1024 * 1024))
        assert (outcome.outcome, outcome.score) == (OutcomeKind.KILLED, 0.0)
    assert len(server.asked) == 2


async def test_wrong_arguments_raise_before_anything_is_sent() -> None:
    async with serving(answer_one) as server, Retinue(server.url) as r:
        with pytest.raises(TypeError, match="response is a NoneType"):
            await r.check("math", response=None)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout_s is 0"):
            await r.check("math", response="", timeout_s=0)
        with pytest.raises(TypeError, match="gold and args must be JSON"):
            await r.check("math", response="", gold=object())
    assert server.connections == 0
