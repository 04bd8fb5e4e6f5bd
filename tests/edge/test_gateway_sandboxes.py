"""Requests about one sandbox go to the replica that has it or nowhere; creates go where there is room."""

import asyncio
import json

import pytest
from aiohttp import web
from gateway_sandbox_scenes import build_create, make_sandbox_route, name_sandbox, open_host, say_capacity
from gateway_scenes import Answer, find_closed_port, make_backend, make_route, open_scene

from retinue.channel.messages import Gone

CREATES = "POST /v1/sandboxes"


def read_error(answer: Answer) -> dict[str, object]:
    error: dict[str, object] = json.loads(answer.body)["error"]
    return error


async def test_an_id_in_path_or_header_decides_the_replica() -> None:
    async with open_scene() as scene:
        hosts = [await open_host(scene, index) for index in range(3)]
        scene.publish(make_sandbox_route(*hosts))
        for index in (2, 0, 1, 2):
            answer = await scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(index)}/exec", "POST", body=b"{}")
            assert (answer.status, answer.body) == (200, f"sandbox/{index}".encode())
            answer = await scene.ask("/sandbox/run_code", headers=f"X-Retinue-Sandbox: {name_sandbox(index)}\r\n")
            assert answer.body == f"sandbox/{index}".encode()
    assert hosts[2].count(f"POST /v1/sandboxes/{name_sandbox(2)}/exec") == 2


async def test_a_replica_that_is_not_ready_still_serves_what_it_has_and_gets_no_creates() -> None:
    async with open_scene() as scene:
        ready, unready = await open_host(scene, 0), await open_host(scene, 1)
        assert unready.backend is not None
        scene.publish(make_sandbox_route(ready, unready=(unready.backend,)))
        answer = await scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(1)}")
        assert answer.body == b"sandbox/1"
        for _ in range(4):
            assert (await scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create())).body == b"sandbox/0"
        # And the agent's word that it lost its readiness does not lose what it has either.
        scene.publish(make_sandbox_route(ready, unready))
        scene.proxy.table.drop("sandbox/1", 1, "lost readiness")
        answer = await scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(1)}")
        assert answer.body == b"sandbox/1"


async def test_a_replica_that_is_gone_is_said_at_once_with_node_and_cause() -> None:
    async with open_scene() as scene:
        host = await open_host(scene, 0)
        scene.publish(make_sandbox_route(host, gone=(Gone("sandbox/1", "n7", "sandbox/1 backoff: exited with 9"),)))
        answer = await scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(1)}")
        error = read_error(answer)
        assert (answer.status, error["type"], error["service"]) == (410, "infra_failed", "sandbox")
        assert (error["node"], error["cause"], error["retryable"]) == ("n7", "sandbox/1 backoff: exited with 9", False)
        assert answer.headers["x-retinue-outcome"] == "infra_failed"
        assert answer.headers["x-should-retry"] == "false"
        assert not host.asked


async def test_all_replicas_gone_means_410_for_an_id_and_a_hold_for_a_create() -> None:
    async with open_scene() as scene:
        scene.publish(make_sandbox_route(gone=(Gone("sandbox/0", "n1", "died"),), hold_s=60.0))
        assert (await scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(0)}")).status == 410
        held = scene.start_asking("/sandbox/v1/sandboxes", "POST", body=build_create())
        host = await open_host(scene, 1)
        scene.publish(make_sandbox_route(host))
        assert (await held).body == b"sandbox/1"


async def test_a_port_where_nobody_listens_any_more_is_a_lost_sandbox_and_no_other_replica_is_asked() -> None:
    async with open_scene() as scene:
        dead, other = make_backend(find_closed_port(), "sandbox/0"), await open_host(scene, 1)
        scene.publish(make_sandbox_route(dead, other))
        answer = await scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(0)}/exec", "POST", body=b"{}")
        error = read_error(answer)
        assert (answer.status, error["type"], error["node"]) == (410, "infra_failed", "n1")
        assert "connection refused" in str(error["cause"])
        assert not other.asked


async def test_a_request_that_broke_is_never_sent_a_second_time() -> None:
    asked = 0

    async def cut(request: web.BaseRequest) -> web.Response:
        nonlocal asked
        asked += 1
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with open_scene() as scene:
        backend = make_backend(await scene.open_backend(cut), "sandbox/0")
        scene.publish(make_sandbox_route(backend))
        answer = await scene.ask(f"/sandbox/v1/sandboxes/{name_sandbox(0)}/exec", "POST", body=b"{}")
        assert (answer.status, read_error(answer)["type"]) == (409, "retinue_bad_gateway")
    assert asked == 1


@pytest.mark.parametrize(
    "name", ["nonsense", "other.0-0123456789abcdef", "sandbox.0-short", "sandbox.x-0123456789abcdef"]
)
async def test_what_is_no_id_of_the_service_is_unknown_and_no_outage(name: str) -> None:
    async with open_scene() as scene:
        host = await open_host(scene, 0)
        scene.publish(make_sandbox_route(host))
        answer = await scene.ask(f"/sandbox/v1/sandboxes/{name}")
        assert (answer.status, read_error(answer)["type"]) == (404, "sandbox_unknown")
        assert "x-retinue-outcome" not in answer.headers


async def test_before_the_first_membership_nothing_is_called_lost() -> None:
    async with open_scene() as scene:
        host = await open_host(scene, 0)
        held = scene.start_asking(f"/sandbox/v1/sandboxes/{name_sandbox(0)}")
        await asyncio.sleep(0)
        scene.publish(make_sandbox_route(host))
        assert (await held).body == b"sandbox/0"


async def test_only_services_of_sandboxes_look_for_ids() -> None:
    async with open_scene() as scene:
        host = await open_host(scene, 0)
        assert host.backend is not None
        scene.publish(make_route(host.backend))
        answer = await scene.ask(f"/judge/v1/sandboxes/{name_sandbox(7)}")
        assert (answer.status, answer.body) == (200, b"sandbox/0")


async def test_a_create_goes_to_the_host_with_more_room_and_asks_each_for_it_once() -> None:
    async with open_scene() as scene:
        full = await open_host(scene, 0, capacity=say_capacity(90))
        free = await open_host(scene, 1, capacity=say_capacity(10))
        scene.publish(make_sandbox_route(full, free))
        for _ in range(10):
            assert (await scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create())).body == b"sandbox/1"
        assert full.count("GET /v1/capacity") == free.count("GET /v1/capacity") == 1
        assert (full.count(CREATES), free.count(CREATES)) == (0, 10)


async def test_a_host_that_says_nothing_or_hangs_does_not_stop_a_create() -> None:
    async def hang(request: web.BaseRequest) -> web.Response:
        if request.path == "/v1/capacity":
            await asyncio.Event().wait()
        return web.Response(text="hung")

    async with open_scene() as scene:
        silent = await open_host(scene, 0)
        hung = make_backend(await scene.open_backend(hang), "sandbox/1")
        scene.publish(make_sandbox_route(silent, hung))
        assert (await scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create())).status == 200
        free = await open_host(scene, 2, capacity=say_capacity(50))
        scene.publish(make_sandbox_route(silent, free))
        for _ in range(4):
            assert (await scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create())).body == b"sandbox/2"


async def test_a_create_whose_host_just_died_goes_to_another() -> None:
    async with open_scene() as scene:
        dead, other = make_backend(find_closed_port(), "sandbox/0"), await open_host(scene, 1)
        scene.publish(make_sandbox_route(dead, other))
        for _ in range(6):
            assert (await scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create())).body == b"sandbox/1"


async def test_a_key_goes_to_the_same_host_whoever_asks_and_one_for_sending_again_to_where_it_was() -> None:
    hosts_by_key: dict[str, set[bytes]] = {}
    for _ in range(2):  # Two gateways that know nothing of each other.
        async with open_scene() as scene:
            hosts = [await open_host(scene, index, capacity=say_capacity(index)) for index in range(4)]
            scene.publish(make_sandbox_route(*hosts))
            for number in range(40):
                answer = await scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create(key=f"rollout {number}"))
                hosts_by_key.setdefault(f"rollout {number}", set()).add(answer.body)
            once = {
                (await scene.ask("/sandbox/v1/sandboxes", "POST", body=build_create(key="once-1"))).body
                for _ in "12345"
            }
            assert len(once) == 1
    assert all(len(hosts) == 1 for hosts in hosts_by_key.values())
    assert len(set.union(*hosts_by_key.values())) == 4
