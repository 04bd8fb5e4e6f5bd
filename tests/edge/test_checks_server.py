"""The HTTP side of the checks: what is answered to whom, and that one caller costs another nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from checks_scenes import FAKE_WARM, Service, ask, build_settings, real_service, until

from retinue.checks.body import BODY_BYTES_MAX
from retinue.checks.records import Limits
from retinue.terms.record import to_plain

LONG = Limits(wall_s=30.0, cpu_s=30.0, memory_bytes=256 * 2**20)


def body(response: str, **fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(ask(response, **fields))
    return plain


async def read_lines(service: Service, checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with service.session.post("/v1/checks", json={"checks": checks}) as response:
        assert (response.status, response.content_type) == (200, "application/x-ndjson")
        return [json.loads(line) async for line in response.content]


async def test_one_check_is_answered_with_every_field_of_its_outcome(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path)) as service:
        status, outcome = await service.post("/v1/check", body("right", rollout_id="r7"))
    assert status == 200
    assert outcome.pop("wall_s") > 0
    assert outcome.pop("cpu_s") >= 0
    assert outcome == {
        "outcome": "scored",
        "score": 1.0,
        "reason": "'right'",
        "rollout_id": "r7",
        "verifier": "mine",
        "incarnation": "checks/0#1",
        "node": "n1",
        "service": "checks",
        "event": "",
    }


async def test_a_request_that_is_wrong_but_readable_is_an_outcome_too(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path)) as service:
        for wrong in (body("right", verifier="nobody"), body("right", gold="wrong"), body("right", timeout_s=-1)):
            status, outcome = await service.post("/v1/check", wrong)
            assert (status, outcome["outcome"], outcome["score"]) == (200, "rejected", None)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "truncated"),
        (b"no json", "malformed"),
        (b'{"verifier": "mine", "response": 7}', "$.response"),
        (b'{"verifier": "mine"}', "`response`"),
        (b'{"verifier": "mine", "response": "x", "args": []}', "$.args"),
        (b'{"verifier": "mine", "response": "x", "timeout_s": "1"}', "$.timeout_s"),
        (b'{"verifier": "mine", "response": "\xff"}', "UTF-8"),
        (b'{"verifier": "mine", "response": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"verifier": "mine", "response": "\\ud800", "gold": NaN}', "malformed"),
        (b'{"verifier": "mine", "response": "x", "gold": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"verifier": "mine", "response": "\\ud800", "gold": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested"),
        (b'{"verifier": "mine", "response": "x", "gold": ' + b"1" * 9000 + b"}", "$.gold"),
    ],
)
async def test_what_cannot_be_read_is_400_and_names_the_field(tmp_path: Path, raw: bytes, words: str) -> None:
    async with real_service(build_settings(tmp_path), FAKE_WARM) as service:
        status, answer = await service.post("/v1/check", raw)
        assert status == 400
        assert words in answer["error"]["message"]
        assert (await service.post("/v1/check", body("right")))[0] == 200


async def test_odd_characters_reach_the_verifier_and_a_lone_surrogate_becomes_u_fffd(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path)) as service:
        raw = rb'{"verifier": "mine", "response": "a\u0000\ud800b\ud83d\ude00", "gold": "a\u0000\ufffdb\ud83d\ude00"}'
        status, outcome = await service.post("/v1/check", raw)
    assert (status, outcome["score"], outcome["reason"]) == (200, 1.0, ascii("a\0\ufffdb\U0001f600"))


async def test_a_body_that_is_too_long_is_413_before_it_was_read_whole(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path), FAKE_WARM) as service:
        reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1))
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 413 ")
        writer.close()
        status, answer = await service.post("/v1/checks", {"checks": [body("x")] * 10_001})
        assert (status, answer["error"]["type"]) == (413, "checks_too_many")


async def test_each_result_of_a_batch_is_sent_as_it_finishes(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path, limits=LONG), FAKE_WARM) as service:
        release = tmp_path / "release"
        checks = [body(f"wait-for {release}", rollout_id="slow"), body("right", rollout_id="quick")]
        async with service.session.post("/v1/checks", json={"checks": checks}) as response:
            first = json.loads(await response.content.readline())
            assert (first["index"], first["rollout_id"], first["score"]) == (1, "quick", 1.0)
            release.touch()
            second = json.loads(await response.content.readline())
            assert (second["index"], second["rollout_id"], second["outcome"]) == (0, "slow", "scored")
            assert await response.content.read() == b""


async def test_a_batch_answers_every_row_once_whatever_became_of_it(tmp_path: Path) -> None:
    responses = ["right", "hang", "exit 3", "raise no", "right", "crash"] * 3
    checks = [body(response) for response in responses] + [
        body("right", verifier="nobody"),
        body("right", gold="wrong"),
    ]
    async with real_service(build_settings(tmp_path, limits=Limits(wall_s=0.5, cpu_s=0.5))) as service:
        lines = await read_lines(service, checks)
        assert await read_lines(service, []) == []
    assert sorted(line["index"] for line in lines) == list(range(len(checks)))
    found = {line["index"]: line["outcome"] for line in lines}
    cycle = ["scored", "timed_out", "killed", "killed", "scored", "killed"]
    assert [found[n] for n in range(len(checks))] == cycle * 3 + ["rejected", "rejected"]


async def test_a_full_service_says_when_to_come_back_and_then_takes_the_check(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path, limits=LONG, queue=1), FAKE_WARM) as service:
        release = tmp_path / "release"
        held = [asyncio.create_task(service.post("/v1/check", body(f"wait-for {release}"))) for _ in range(2)]
        await until("both to run", lambda: service.host.running_count == 2)
        held.append(asyncio.create_task(service.post("/v1/check", body("right"))))
        await until("one to wait", lambda: service.host.queued_count == 1)
        async with service.session.post("/v1/check", json=body("right")) as refused:
            assert refused.status == 429
            assert 1 <= int(refused.headers["Retry-After"]) <= 30
            assert (await refused.json())["error"]["retryable"] is True
        release.touch()
        assert [status for status, _ in await asyncio.gather(*held)] == [200, 200, 200]
        assert (await service.post("/v1/check", body("right")))[1]["outcome"] == "scored"


async def test_callers_are_told_apart_by_their_header_else_by_their_connection(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path, limits=LONG, workers=1), FAKE_WARM) as service:
        release = tmp_path / "release"
        order: list[str] = []

        async def call(name: str, **headers: str) -> None:
            await service.post("/v1/check", body(f"right {name}"), **headers)
            order.append(name)

        blocking = asyncio.create_task(service.post("/v1/check", body(f"wait-for {release}")))
        await until("it to run", lambda: service.host.running_count == 1)
        flood = []
        for number in range(6):
            flood.append(asyncio.create_task(call("flood", **{"X-Retinue-Caller": "flood"})))
            await until("it to wait", lambda n=number: service.host.queued_count == n + 1)
        quiet = asyncio.create_task(call("quiet"))
        await until("it to wait", lambda: service.host.queued_count == 7)
        release.touch()
        await asyncio.gather(blocking, quiet, *flood)
    assert order.index("quiet") <= 2


@pytest.mark.parametrize("path", ["/v1/check", "/v1/checks"])
async def test_a_caller_that_hangs_up_takes_its_checks_along(tmp_path: Path, path: str) -> None:
    async with real_service(build_settings(tmp_path, limits=LONG)) as service:
        hang = body("hang")
        wanted = json.dumps(hang if path == "/v1/check" else {"checks": [hang] * 9}).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        writer.write(
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(wanted)) + wanted
        )
        await until("it to run", lambda: service.host.running_count)
        writer.close()
        await until("its slots", lambda: service.host.running_count == service.host.queued_count == 0)
        assert service.host.tally.cancelled == (1 if path == "/v1/check" else 9)
        assert (await service.post("/v1/check", body("right")))[1]["outcome"] == "scored"


async def test_health_is_200_only_while_a_child_is_ready_and_503_says_why(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path), (*FAKE_WARM, "--broken"), waits=False) as service:
        await until("the cause", lambda: service.host.nursery.is_broken)
        status, health = await service.get("/health")
        assert (status, health["cause"]) == (503, "verifier 'mine' cannot be used: ImportError: no")
    async with real_service(build_settings(tmp_path)) as service:
        status, health = await service.get("/health")
        assert (status, health["status"]) == (200, "ok")
        service.host.is_stopping = True
        assert (await service.get("/health"))[0] == 503


async def test_the_pages_for_people_say_what_there_is(tmp_path: Path) -> None:
    async with real_service(build_settings(tmp_path)) as service:
        await service.post("/v1/check", body("right"))
        await service.post("/v1/check", body("right", verifier='od"d\n'))
        for _ in range(50):
            await service.post("/v1/check", body("raise no"))
        service.host.ledger.begin("made_up", 5.0, "why")
        service.host.ledger.end("made_up", 6.0)
        verifiers = (await service.get("/v1/verifiers"))[1]["verifiers"]
        outages = (await service.get("/v1/outages"))[1]["outages"]
        async with service.session.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        assert (await service.get("/nowhere"))[0] == 404
        assert (await service.get("/v1/check"))[0] == 405
    assert verifiers == {"mine": "Compares; obeys a few responses that hurt."}
    made_up = {"service": "checks", "node": "n1", "from_utc": 5.0, "to_utc": 6.0, "cause": "made_up", "detail": "why"}
    assert outages[0] == made_up | {"replica": "checks/0"}
    assert 'retinue_checks_outcomes_total{verifier="mine",outcome="killed"} 50' in lines
    assert 'retinue_checks_outcomes_total{verifier="",outcome="rejected"} 1' in lines
    assert 'retinue_checks_verifier_suspect{verifier="mine"} 1' in lines
    assert "retinue_checks_warm_launches_total 1" in lines
