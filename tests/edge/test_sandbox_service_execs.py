"""Commands of the sandbox service that flood, stream, run in the background, are asked for twice or given up."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sandbox_scenes import until
from sandbox_service import MIB, Service, real_service


@pytest.fixture
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with real_service(tmp_path_factory.getbasetemp()) as running:
        yield running


def has_sleeper(service: Service, name: str) -> Any:
    async def look() -> bool:
        return "sleep" in await service.text(name, "cat /proc/[0-9]*/comm 2>/dev/null; true")

    return look()


async def until_idle(service: Service, name: str) -> None:
    async with asyncio.timeout(30):
        while await has_sleeper(service, name):
            pass


async def test_a_flood_is_kept_at_both_ends_and_its_neighbours_are_served(service: Service) -> None:
    flooding, other = await service.create(), await service.create()
    flood = asyncio.ensure_future(service.exec(flooding, "echo first; yes | head -c 100M; echo last", timeout_s=60))
    texts = [await service.text(other, "echo here") for _ in range(20)]
    assert texts == ["here"] * 20
    result = await flood
    out = result["stdout"]
    assert result["outcome"] == "exited", result["cause"]
    assert out["total_bytes"] == 100 * MIB + 11
    assert out["head"].startswith("first\ny\n")
    assert out["tail"].endswith("y\nlast\n")
    assert len(out["head"]) + len(out["tail"]) == 64 * 1024 == out["total_bytes"] - out["dropped_bytes"]


async def test_a_flood_without_end_is_ended_at_its_deadline_and_the_sandbox_lives(service: Service) -> None:
    name = await service.create()
    results = await asyncio.gather(*(service.exec(name, "yes; true", timeout_s=1) for _ in range(4)))
    for result in results:
        assert result["outcome"] == "timed_out"
        assert result["stdout"]["dropped_bytes"] > MIB
    assert await service.text(name, "echo alive") == "alive"


async def test_a_fork_bomb_ends_at_its_deadline_and_costs_its_neighbour_nothing(service: Service) -> None:
    bomb, other = await service.create(limits={"pids": 32}), await service.create()
    running = asyncio.ensure_future(service.exec(bomb, "f() { f | f & }; f; sleep 60", timeout_s=2))
    assert [await service.text(other, "echo here") for _ in range(5)] == ["here"] * 5
    result = await running
    assert result["outcome"] in ("timed_out", "exited")
    assert await service.text(bomb, "echo alive") == "alive"
    async with asyncio.timeout(30):
        while (await service.ask("GET", f"/v1/sandboxes/{bomb}"))["usage"]["process_count"]:
            pass


async def test_as_much_output_is_kept_as_was_asked_for(service: Service) -> None:
    name = await service.create()
    result = await service.exec(name, "seq 1000", output={"head": 4, "tail": 5})
    assert (result["stdout"]["head"], result["stdout"]["tail"]) == ("1\n2\n", "1000\n")
    assert (await service.exec(name, "seq 1000", output=0))["stdout"]["dropped_bytes"] == 3893
    assert (await service.exec(name, "seq 1000", output=MIB))["stdout"]["dropped_bytes"] == 0


async def test_a_streamed_command_is_heard_while_it_runs_and_its_last_line_is_its_end(service: Service) -> None:
    name = await service.create()
    await service.text(name, "mkfifo /gate")
    lines = []
    async for line in service.stream(name, "echo one; cat /gate; echo three >&2; exit 5"):
        lines.append(line)
        if line.get("data") == "one\n":
            await service.text(name, "echo two > /gate")
    assert [(line["stream"], line["data"]) for line in lines[:-1]] == [
        ("stdout", "one\n"),
        ("stdout", "two\n"),
        ("stderr", "three\n"),
    ]
    assert (lines[-1]["end"]["outcome"], lines[-1]["end"]["code"]) == ("exited", 5)


async def test_a_streamed_flood_arrives_whole_though_its_reader_is_slow(service: Service) -> None:
    name = await service.create()
    total, pauses = 0, 0
    async for line in service.stream(name, "yes ä | head -c 20M"):
        if "end" in line:
            assert line["end"]["outcome"] == "exited"
            break
        total += len(line["data"].encode() if line["encoding"] == "utf-8" else base64.b64decode(line["data"]))
        pauses += 1
        if pauses < 20:
            await asyncio.sleep(0)
    assert total == 20 * MIB


async def test_a_caller_who_hangs_up_takes_his_command_along_but_not_one_with_a_key(service: Service) -> None:
    name = await service.create()
    for fields in ({}, {"stream": True}):
        asking = asyncio.ensure_future(
            service.ask_raw("POST", f"/v1/sandboxes/{name}/exec", json={"script": "sleep 1000"} | fields)
        )
        async with asyncio.timeout(30):
            while not await has_sleeper(service, name):
                pass
        asking.cancel()
        await until_idle(service, name)
    await service.text(name, "mkfifo /gate")
    keyed = {"script": "cat /gate; echo done >> /log; cat /log", "key": "k"}
    asking = asyncio.ensure_future(service.ask("POST", f"/v1/sandboxes/{name}/exec", keyed))
    await service.text(name, "echo x > /gate")
    asking.cancel()
    results = await asyncio.gather(*(service.ask("POST", f"/v1/sandboxes/{name}/exec", keyed) for _ in range(3)))
    assert [result["stdout"]["head"] for result in results] == ["x\ndone\n"] * 3


async def test_a_background_command_is_waited_for_read_from_and_remembered(service: Service) -> None:
    name = await service.create()
    place = f"/v1/sandboxes/{name}/processes"
    await service.text(name, "mkfifo /gate")
    started = await service.exec(name, "echo one; cat /gate; exit 3", background=True)
    process = started["process"]
    shown = await service.ask("GET", f"{place}/{process}")
    assert (shown["state"], shown["result"]["outcome"]) == ("running", None)
    offset = 0
    async with asyncio.timeout(30):
        while offset < 4:
            async with service.session.get(f"{place}/{process}/output?offset={offset}") as response:
                assert await response.read() in (b"", b"one\n")
                offset = int(response.headers["X-Next-Offset"])
    await service.text(name, "echo two > /gate")
    shown = await service.ask("GET", f"{place}/{process}?wait_s=30")
    assert (shown["state"], shown["result"]["code"], shown["result"]["stdout"]["head"]) == ("ended", 3, "one\ntwo\n")
    assert await service.ask_raw("GET", f"{place}/{process}/output?offset=4") == b"two\n"
    (listed,) = (await service.ask("GET", place))["processes"]
    assert (listed["process"], listed["state"]) == (process, "ended")
    await service.ask("DELETE", f"{place}/{process}")
    assert (await service.refusal("GET", f"{place}/{process}")).kind == "sandbox_no_process"


async def test_a_background_command_is_signalled_fed_and_killed_with_all_it_started(service: Service) -> None:
    name = await service.create()
    place = f"/v1/sandboxes/{name}/processes"
    script = "trap 'echo got it; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    process = (await service.exec(name, script, background=True))["process"]
    await until_output(service, f"{place}/{process}", b"ready\n")
    assert (await service.ask("POST", f"{place}/{process}/signal", {"signal": "TERM"}))["signalled"] == 1
    shown = await service.ask("GET", f"{place}/{process}?wait_s=30")
    assert shown["result"]["stdout"]["head"] == "ready\ngot it\n"
    process = (await service.exec(name, "cat; echo end", background=True, stdin_open=True))["process"]
    await service.ask_raw("POST", f"{place}/{process}/stdin", b"a")
    await service.ask_raw("POST", f"{place}/{process}/stdin?close=1", b"b")
    shown = await service.ask("GET", f"{place}/{process}?wait_s=30")
    assert shown["result"]["stdout"]["head"] == "abend\n"
    assert (await service.refusal("POST", f"{place}/{process}/stdin", {})).status == 409
    process = (await service.exec(name, "sleep 1000 & sleep 1000 & wait", background=True))["process"]
    async with asyncio.timeout(30):
        while not await has_sleeper(service, name):
            pass
    assert (await service.ask("POST", f"{place}/{process}/kill"))["left"] == 0
    assert not await has_sleeper(service, name)
    assert (await service.refusal("POST", f"{place}/{process}/signal", {"signal": "NOPE"})).status == 400
    assert (await service.refusal("POST", f"{place}/{process}/dance", {})).status == 404


async def until_output(service: Service, place: str, wanted: bytes) -> None:
    async with asyncio.timeout(30):
        while await service.ask_raw("GET", f"{place}/output") != wanted:
            pass


async def test_a_destroyed_sandbox_ends_the_command_that_runs_in_it_and_that_is_no_fault_of_ours(
    service: Service,
) -> None:
    name = await service.create()
    running = asyncio.ensure_future(service.refusal("POST", f"/v1/sandboxes/{name}/exec", {"script": "sleep 1000"}))
    async with asyncio.timeout(30):
        while not await has_sleeper(service, name):
            pass
    await service.ask("DELETE", f"/v1/sandboxes/{name}")
    refusal = await running
    assert (refusal.status, refusal.kind) == (410, "sandbox_destroyed")
    await until(lambda: len(service.host.seats) == 0)
