"""A sandbox through the client: its life, and every way in which its service, its network or its caller fails."""

import asyncio
from typing import Any

import pytest
from client_sandbox_scenes import BOX, HERE, cut, in_turns, made, output, pages, refuse, result, say
from client_scenes import Asked, Server, hang, serving, until

from retinue.client import (
    EndKind,
    Retinue,
    Sandbox,
    SandboxGone,
    SandboxKilled,
    SandboxLost,
    SandboxRefused,
    SandboxUnsure,
)
from retinue.errors import UsageError


def open_client(server: Server) -> Retinue:
    return Retinue({"sandbox": server.url}, hold_s=5.0)


def paths(server: Server) -> list[tuple[str, str]]:
    return [(asked.method, asked.path) for asked in server.asked]


async def test_a_sandbox_is_made_used_and_destroyed_and_says_what_it_wants() -> None:
    async with serving(pages()) as server, open_client(server) as r:
        async with r.sandbox("img", limits={"memory": "64MiB"}, env={"A": "b"}, user=1000) as box:
            assert (box.id, box.node) == (BOX, "n7")
            ended = await box.exec(["echo", "hi"], timeout_s=3, env={"C": "d"})
        assert (ended.outcome, ended.is_ok, ended.stdout.raw, ended.stdout.text) == (
            EndKind.EXITED,
            True,
            b"hi\n",
            "hi\n",
        )
    assert paths(server) == [("POST", "/v1/sandboxes"), ("POST", f"{HERE}/exec"), ("DELETE", HERE)]
    create, run = server.asked[0].json, server.asked[1].json
    assert create.pop("key").startswith("once-")
    assert create == {"image": "img", "limits": {"memory": "64MiB"}, "env": {"A": "b"}, "user": 1000, "lease_s": 900.0}
    assert len(run.pop("key")) == 32
    assert run == {"argv": ["echo", "hi"], "timeout_s": 3, "env": {"C": "d"}}
    assert server.asked[0].headers["x-retinue-caller"]


async def test_what_the_policy_does_is_a_value_and_what_we_do_is_an_exception() -> None:
    kinds = ("signalled", "timed_out", "memory_exceeded", "disk_full")
    runs = [say(200, result(kind, signal=9, stdout=output("partial"))) for kind in kinds]
    lost = say(200, result("infra_failed", cause="shard died", node="n3"))
    run = in_turns(*runs, lost)
    async with serving(pages(exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        for kind in kinds:
            ended = await box.exec("x", timeout_s=1)
            assert (ended.outcome.value, ended.is_ok, ended.stdout.text) == (kind, False, "partial")
        with pytest.raises(SandboxLost) as caught:
            await box.exec("x", timeout_s=1)
        assert (caught.value.node, caught.value.cause, caught.value.sandbox) == ("n3", "shard died", BOX)


async def test_output_is_exact_whatever_its_bytes_and_says_what_was_dropped() -> None:
    stdout = {"encoding": "base64", "head": "/w==", "tail": "/g==", "dropped_bytes": 9, "total_bytes": 11}
    run = say(200, result(stdout=stdout))
    async with serving(pages(exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        ended = await box.exec(["x"], timeout_s=1)
    assert (ended.stdout.raw, ended.stdout.dropped_bytes, ended.stdout.total_bytes) == (b"\xff\xfe", 9, 11)
    assert ended.stdout.text == "\ufffd\n[9 bytes dropped]\n\ufffd"
    assert ended.stderr.raw == b""


@pytest.mark.parametrize(
    ("script", "expected", "fields"),
    [
        (refuse(410, "infra_failed", node="n3", cause="host died"), SandboxLost, {"node": "n3", "cause": "host died"}),
        (refuse(409, "retinue_unavailable"), SandboxLost, {"node": "n7"}),
        (refuse(410, "sandbox_expired"), SandboxGone, {}),
        (refuse(410, "sandbox_destroyed"), SandboxGone, {}),
        (refuse(404, "sandbox_unknown"), SandboxRefused, {"kind": "sandbox_unknown", "status": 404}),
        (refuse(400, "sandbox_bad_request"), SandboxRefused, {"kind": "sandbox_bad_request"}),
        (refuse(403, "retinue_forbidden"), SandboxRefused, {"kind": "retinue_forbidden"}),
        (refuse(504, "sandbox_timed_out"), SandboxRefused, {"kind": "sandbox_timed_out"}),
    ],
)
async def test_every_refusal_has_its_own_exception_and_is_asked_once(
    script: Any, expected: type[Exception], fields: dict[str, Any]
) -> None:
    async with serving(pages(exec=script)) as server, open_client(server) as r, r.sandbox("img") as box:
        with pytest.raises(expected) as caught:
            await box.exec("x", timeout_s=1)
        assert type(caught.value) is expected
        assert {name: getattr(caught.value, name) for name in fields} == fields
        assert paths(server).count(("POST", f"{HERE}/exec")) == 1


async def test_a_sandbox_that_the_kernel_ended_for_memory_is_a_value_for_a_command_and_no_outage_for_a_file() -> None:
    killed = refuse(410, "sandbox_killed")
    async with serving(pages(exec=killed, file=killed)) as server, open_client(server) as r, r.sandbox("img") as box:
        assert (await box.exec("x", timeout_s=1)).outcome is EndKind.MEMORY_EXCEEDED
        with pytest.raises(SandboxKilled):
            await box.files.read("/x")


async def test_a_full_node_is_waited_for_as_long_as_it_says() -> None:
    create = in_turns(
        refuse(429, "sandbox_full", after="0"), refuse(503, "infra_failed", retryable=True), say(201, made())
    )
    async with serving(pages(create=create)) as server, open_client(server) as r, r.sandbox("img") as box:
        assert box.id == BOX
        bodies = [asked.json for asked in server.asked]
        assert bodies[0] == bodies[1] == bodies[2]


async def test_a_node_that_stays_full_is_our_shortage_at_the_deadline() -> None:
    async with serving(pages(create=refuse(429, "sandbox_full", after="60"))) as server, open_client(server) as r:
        with pytest.raises(SandboxLost, match=r"no answer after 0\.3 s: cannot: sandbox_full"):
            async with r.sandbox("img", deadline_s=0.3):
                pass
    assert len(server.asked) == 1


async def test_a_node_that_makes_none_is_not_asked_for_ever() -> None:
    none = refuse(503, "infra_failed", cause="user namespaces off")
    async with serving(pages(create=none)) as server, open_client(server) as r:
        with pytest.raises(SandboxLost, match="given up"):
            await r.sandbox("img").__aenter__()
    assert len(server.asked) == 3


async def test_a_create_and_a_command_whose_connection_broke_are_found_again_by_their_keys() -> None:
    create = in_turns(cut(), say(201, made()))
    run = in_turns(cut(), refuse(409, "retinue_bad_gateway"), say(200, result()))
    async with serving(pages(create=create, exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        assert (await box.exec("x", timeout_s=5)).is_ok
        keys = [asked.json["key"] for asked in server.asked]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3] == keys[4] != keys[0]


async def test_a_command_that_may_be_forgotten_by_now_is_not_run_twice() -> None:
    """The service remembers the ends of the last four."""
    held: list[Asked] = []

    async def run(asked: Asked) -> None:
        if asked.json["script"] == "slow":
            held.append(asked)
            await hang(asked)
        await asked.answer(200, result())

    async with serving(pages(exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        slow = asyncio.create_task(box.exec("slow", timeout_s=5))
        await until(lambda: held, "the slow one is sent")
        for _ in range(4):
            await box.exec("quick", timeout_s=5)
        held[0].cut()
        with pytest.raises(SandboxUnsure):
            await slow
        again = asyncio.create_task(box.exec("slow", timeout_s=5))
        await until(lambda: len(held) == 2, "another slow one is sent")
        held[1].cut()
        await until(lambda: len(held) == 3, "it is sent again: nothing came between")
        again.cancel()


async def test_what_may_not_be_done_twice_is_not_and_says_so() -> None:
    broken = pages(exec=cut(), file=cut(), processes=cut())
    async with serving(broken) as server, open_client(server) as r, r.sandbox("img") as box:
        for call in (
            box.start("sleep 9"),
            box.files.write("/x", b"1", append=True),
            box.process("p1").signal("TERM"),
            box.process("p1").write(b"1"),
        ):
            with pytest.raises(SandboxUnsure):
                await call
    assert len(server.asked) == 2 + 4


async def test_leaving_by_cancellation_destroys_it_before_the_cancellation_goes_on() -> None:
    async with serving(pages(exec=hang)) as server, open_client(server) as r:

        async def rollout() -> None:
            async with r.sandbox("img") as box:
                await box.exec("sleep 99", timeout_s=99)

        task = asyncio.create_task(rollout())
        await until(lambda: len(server.asked) == 2, "the command is sent")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert paths(server)[-1] == ("DELETE", HERE)


async def test_a_cancellation_that_comes_while_it_is_destroyed_waits_for_that() -> None:
    deleted: list[Asked] = []

    async def destroy(asked: Asked) -> None:
        deleted.append(asked)
        await leave.wait()
        await asked.answer(200, {"id": BOX, "state": "destroyed"})

    leave = asyncio.Event()
    async with serving(pages(destroy=destroy)) as server, open_client(server) as r:

        async def rollout() -> None:
            async with r.sandbox("img"):
                pass

        task = asyncio.create_task(rollout())
        await until(lambda: deleted, "it is being destroyed")
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(deleted) == 1


async def test_a_create_that_is_cancelled_leaves_no_sandbox() -> None:
    async with serving(pages(create=in_turns(hang, say(200, made(is_new=False))))) as server, open_client(server) as r:
        entering = asyncio.create_task(r.sandbox("img").__aenter__())
        await until(lambda: server.asked, "the create is sent")
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        await until(lambda: ("DELETE", HERE) in paths(server), "what it may have made is destroyed")
        assert server.asked[1].json["key"] == server.asked[0].json["key"]


async def test_a_destroy_that_fails_does_not_hide_what_the_rollout_raised() -> None:
    async with serving(pages(destroy=refuse(410, "infra_failed"))) as server, open_client(server) as r:
        with pytest.raises(KeyError, match="mine"):
            async with r.sandbox("img"):
                raise KeyError("mine")
    assert paths(server)[-1] == ("DELETE", HERE)


async def test_the_lease_is_renewed_while_nobody_asks_anything() -> None:
    async with serving(pages()) as server, open_client(server) as r, r.sandbox("img", lease_s=0.3):
        await until(lambda: paths(server).count(("POST", f"{HERE}/renew")) >= 3, "renewed three times")


async def test_many_long_commands_keep_neither_a_destroy_nor_a_renewal_from_a_connection() -> None:
    async with serving(pages(exec=hang)) as server, open_client(server) as r, r.sandbox("img") as box:
        running = [asyncio.create_task(box.exec("sleep", timeout_s=60)) for _ in range(300)]
        await until(lambda: len(server.asked) == 301, "all of them run: no small bound holds some back")
        async with asyncio.timeout(5):
            await box.renew()
        for task in running:
            task.cancel()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda r: r.sandbox("i", lease_s=0), ValueError),
        (lambda r: r.sandbox("i", colour="red"), TypeError),
        (lambda r: r.sandbox("i", service="sandbx"), UsageError),
        (lambda r: r.sandbox("i").made, UsageError),
    ],
)
async def test_a_wrong_argument_raises_before_anything_is_sent(call: Any, error: type[Exception]) -> None:
    async with serving(pages()) as server, open_client(server) as r:
        with pytest.raises(error):
            call(r)
    assert not server.asked


async def test_a_wrong_command_raises_and_a_lone_surrogate_of_a_policy_does_not() -> None:
    async with serving(pages()) as server, open_client(server) as r, r.sandbox("img") as box:
        for command, options, error in (([], {}, ValueError), ([1], {}, TypeError), ("x", {"tty": True}, TypeError)):
            with pytest.raises(error):
                await box.exec(command, **options)  # type: ignore[arg-type]
        assert (await box.exec("echo \ud800", stdin="\udfff", timeout_s=1)).is_ok
        assert (server.asked[1].json["script"], server.asked[1].json["stdin"]) == ("echo ?", "?")


async def test_a_command_without_a_limit_may_take_as_long_as_the_sandbox_allows() -> None:
    async with serving(pages()) as server, open_client(server) as r, r.sandbox("img") as box:
        await box.exec("x")
        await box.exec("x")
    assert paths(server).count(("GET", HERE)) == 1


def test_the_class_that_is_given_is_the_one_that_is_exported() -> None:
    assert isinstance(Retinue({"sandbox": "http://127.0.0.1:1"}).sandbox("i"), Sandbox)
