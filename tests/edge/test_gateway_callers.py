"""Who may call a gateway, asked of the real kernel with real sockets and real users."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Iterator

import pytest
from aiohttp import web
from gateway_scenes import TOKEN, Scene, make_backend, make_route, open_scene

from retinue.gateway.caller import Doorkeeper, PeerUids, read_own_uid

NOBODY = 65534
ASK_AS_ANOTHER = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
connection.request("GET", "/judge/", headers=dict([sys.argv[2].split(": ", 1)]) if len(sys.argv) > 2 else {})
print(connection.getresponse().status)
"""


async def publish_ok(scene: Scene) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(text="ok")

    scene.publish(make_route(make_backend(await scene.open_backend(handle))))


async def ask_as(uid: int, port: int, *headers: str) -> int:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", ASK_AS_ANOTHER, str(port), *headers, stdout=-1, user=uid, group=uid, extra_groups=[]
    )
    out, _ = await child.communicate()
    return int(out)


@pytest.mark.root
async def test_another_user_is_refused_without_the_token_and_served_with_it() -> None:
    async with open_scene() as scene:
        await publish_ok(scene)
        assert await ask_as(NOBODY, scene.port) == 403
        assert await ask_as(NOBODY, scene.port, "Authorization: Bearer wrong") == 403
        assert await ask_as(NOBODY, scene.port, f"Authorization: Bearer {TOKEN}") == 200
        assert await ask_as(NOBODY, scene.port, f"X-API-Key: {TOKEN}") == 200


@pytest.mark.root
async def test_the_owner_is_known_by_uid_whoever_runs_the_gateway() -> None:
    async with open_scene(own_uid=NOBODY) as scene:
        await publish_ok(scene)
        assert await ask_as(NOBODY, scene.port) == 200
        assert (await scene.ask("/judge/")).status == 403


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("", 403),
        ("Authorization: Bearer nope\r\n", 403),
        ("Authorization: Bearer \r\n", 403),
        (f"Authorization: {TOKEN}\r\n", 403),
        (f"Authorization: Bearer {TOKEN}x\r\n", 403),
        (f"Authorization: Bearer {TOKEN}\r\n", 200),
        (f"authorization: bearer {TOKEN}\r\n", 200),
        (f"X-API-Key: {TOKEN}\r\n", 200),
        (f"Authorization: Bearer sk-other\r\nX-API-Key: {TOKEN}\r\n", 200),
    ],
)
async def test_a_caller_whose_user_is_unknown_needs_the_exact_token(header: str, status: int) -> None:
    async with open_scene(own_uid=None) as scene:
        await publish_ok(scene)
        answer = await scene.ask("/judge/", headers=header)
        assert answer.status == status
        if status == 403:
            assert json.loads(answer.body)["error"]["type"] == "retinue_forbidden"
            assert TOKEN.encode() not in answer.raw_head + answer.body


@pytest.mark.parametrize("target", ["/", "/-/metrics", "/-/health", "/nosuch/"])
async def test_a_stranger_learns_nothing_from_any_page(target: str) -> None:
    async with open_scene(own_uid=None) as scene:
        await publish_ok(scene)
        assert (await scene.ask(target)).status == 403


async def test_each_request_of_a_strangers_connection_needs_the_token() -> None:
    async with open_scene(own_uid=None) as scene:
        await publish_ok(scene)
        client = await scene.connect()
        for header, status in ((f"X-API-Key: {TOKEN}\r\n", 200), ("", 403)):
            await client.send(f"GET /judge/ HTTP/1.1\r\nHost: g\r\n{header}\r\n".encode())
            assert (await client.read_answer()).status == status


@pytest.mark.parametrize("own_uid", [-1, None])
async def test_the_runs_token_ends_at_the_gateway_and_a_services_own_key_does_not(own_uid: int | None) -> None:
    async def handle(request: web.BaseRequest) -> web.Response:
        names = ("Authorization", "X-API-Key", "X-Other")
        return web.json_response([request.headers.getall(name, []) for name in names])

    async with open_scene(own_uid=own_uid) as scene:
        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        for sent, seen in (
            (f"Authorization: Bearer {TOKEN}\r\n", [[], [], []]),
            (f"authorization: bearer  {TOKEN} \r\nx-api-key: sk-judge\r\n", [[], ["sk-judge"], []]),
            (f"X-API-Key: {TOKEN}\r\nAuthorization: Bearer sk-judge\r\n", [["Bearer sk-judge"], [], []]),
            (f"X-API-Key: {TOKEN}\r\nAuthorization: Basic {TOKEN}\r\n", [[f"Basic {TOKEN}"], [], []]),
            (f"X-API-Key: {TOKEN}\r\nX-Other: {TOKEN}\r\n", [[], [], [TOKEN]]),
        ):
            answer = await scene.ask("/judge/", headers=sent)
            assert (answer.status, json.loads(answer.body)) == (200, seen), sent


def test_an_empty_token_opens_nothing() -> None:
    doorkeeper = Doorkeeper(token="", own_uid=None)
    assert not doorkeeper.may_call(object(), ["Bearer "], [""])
    empty = [("X-API-Key", ""), ("Authorization", "Bearer ")]
    assert doorkeeper.list_passed_on(empty) == empty


@pytest.fixture
def uids() -> Iterator[PeerUids]:
    made = PeerUids()
    yield made
    made.close()


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_uid_of_the_other_end_is_found(uids: PeerUids, family: socket.AddressFamily, host: str) -> None:
    with socket.create_server((host, 0), family=family) as server, socket.socket(family) as client:
        client.connect(server.getsockname()[:2])
        accepted, peer = server.accept()
        with accepted:
            assert uids.find_uid(peer[:2], accepted.getsockname()[:2]) == os.getuid()


def test_an_ipv4_client_of_an_ipv6_listener_is_found(uids: PeerUids) -> None:
    server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with server, socket.create_connection(("127.0.0.1", server.getsockname()[1])):
        accepted, peer = server.accept()
        with accepted:
            assert peer[0] == "::ffff:127.0.0.1"
            assert uids.find_uid(peer[:2], accepted.getsockname()[:2]) == os.getuid()


def test_a_client_that_closed_already_is_unknown_and_not_root(uids: PeerUids) -> None:
    # The kernel reports uid 0 for a socket without an owner, which would let anybody in where the owner is root.
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, peer = server.accept()
        with accepted:
            client.close()
            assert uids.find_uid(peer, accepted.getsockname()) is None


def test_a_listener_on_the_clients_port_does_not_answer_for_the_client(uids: PeerUids) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert uids.find_uid(listener.getsockname(), ("127.0.0.1", 1)) is None


def test_a_question_without_an_answer_does_not_spoil_the_next_one(uids: PeerUids) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        accepted, peer = server.accept()
        with accepted:
            for _ in range(3):
                assert uids.find_uid(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
                assert uids.find_uid(peer, accepted.getsockname()) == os.getuid()


def test_an_owner_who_is_the_overflow_uid_is_not_known_by_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    # In a user namespace every unmapped user reads as this uid: a match proves nothing.
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    assert read_own_uid() is None
    monkeypatch.undo()
    assert read_own_uid() == os.getuid()
