"""HTTP by the letter, through real sockets."""

import asyncio
import gzip
import json

import pytest
from aiohttp import web
from gateway_scenes import Scene, make_backend, make_route, open_scene


async def publish_echo(scene: Scene) -> list[bytes]:
    """Publish a backend that keeps the head of every request as bytes and answers 200."""
    heads: list[bytes] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    scene.publish(make_route(make_backend(await scene.open_raw_backend(keep))))
    return heads


@pytest.mark.parametrize(
    "target",
    [
        "/v1/a%2Fb",
        "/%7Euser/%c3%a9",
        "/a%20b?q=%26&x=a+b",
        "/..%2f../x",
        "/a/../b/./c",
        "//two",
        "/a?",
        "/q?a=1?b=2",
        "/;p=1,2!$'()*@:",
    ],
)
async def test_the_path_reaches_the_backend_byte_for_byte(target: str) -> None:
    async with open_scene() as scene:
        heads = await publish_echo(scene)
        assert (await scene.ask(f"/judge{target}")).body == b"ok"
        assert heads[0].split(b"\r\n")[0] == f"GET {target} HTTP/1.1".encode()


async def test_the_backend_is_told_its_own_host_and_the_prefix_and_nothing_is_added() -> None:
    async with open_scene() as scene:
        heads = await publish_echo(scene)
        await scene.ask("/judge/x", headers="X-Mine: 1\r\nConnection: keep-alive\r\n")
        port = scene.proxy.table.services["judge"].slots[0].backend.port
        assert heads[0].decode().split("\r\n")[1:-2] == [
            f"Host: 127.0.0.1:{port}",
            "X-Mine: 1",
            "X-Forwarded-Prefix: /judge",
        ]


async def test_a_connection_to_a_backend_is_used_again() -> None:
    async with open_scene() as scene:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        scene.publish(make_route(make_backend(await scene.open_raw_backend(serve))))
        client = await scene.connect()
        for _ in range(5):
            await client.send(b"GET /judge/ HTTP/1.1\r\nHost: g\r\n\r\n")
            assert (await client.read_answer()).body == b"ok"
        assert connections == 1


@pytest.mark.parametrize(
    ("method", "status", "sent"),
    [
        ("HEAD", 200, {"content-length": "1234"}),
        ("GET", 204, {}),
        ("GET", 304, {"etag": '"x"'}),
        ("OPTIONS", 200, {"allow": "GET", "content-length": "0"}),
        ("DELETE", 202, {"content-length": "0"}),
    ],
)
async def test_an_answer_without_a_body_is_passed_on_without_one(
    method: str, status: int, sent: dict[str, str]
) -> None:
    async with open_scene() as scene:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
                writer.write(f"HTTP/1.1 {status} Fine\r\n{lines}\r\n".encode())

        scene.publish(make_route(make_backend(await scene.open_raw_backend(serve))))
        client = await scene.connect()
        for _ in range(2):
            await client.send(f"{method} /judge/ HTTP/1.1\r\nHost: g\r\n\r\n".encode())
            answer = await client.read_head()
            assert answer.raw_head.startswith(f"HTTP/1.1 {status} Fine\r\n".encode())
            assert "transfer-encoding" not in answer.headers
            assert {name: answer.headers.get(name) for name in sent} == sent
        assert scene.proxy.counts.failed == 0


async def test_a_compressed_answer_and_a_compressed_body_pass_untouched() -> None:
    async with open_scene() as scene:
        packed = gzip.compress(b"x" * 1000)

        async def handle(request: web.BaseRequest) -> web.Response:
            assert await request.read() == packed
            return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        answer = await scene.ask("/judge/", "POST", "Content-Encoding: gzip\r\n", packed)
        assert (answer.headers["content-encoding"], answer.body) == ("gzip", packed)


async def test_an_http_1_0_client_gets_an_unframed_answer_that_ends_with_its_connection() -> None:
    async with open_scene() as scene:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(b"one")
            await answer.write(b"two")
            return answer

        scene.publish(make_route(make_backend(await scene.open_backend(handle))))
        client = await scene.connect()
        await client.send(b"GET /judge/ HTTP/1.0\r\n\r\n")
        assert "transfer-encoding" not in (await client.read_head()).headers
        assert await asyncio.wait_for(client.reader.read(), 20) == b"onetwo"


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 0x5\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "X: a\r\n folded\r\n",
        "Bad Name: 1\r\n",
        "X: a\x00b\r\n",
        "X-Long: " + "a" * 40_000 + "\r\n",
        "".join(f"X-{at}: 1\r\n" for at in range(300)),
    ],
)
async def test_a_request_that_two_parsers_could_read_differently_reaches_no_backend(head: str) -> None:
    async with open_scene() as scene:
        heads = await publish_echo(scene)
        client = await scene.connect()
        await client.send(
            f"POST /judge/ HTTP/1.1\r\nHost: g\r\n{head}\r\n0\r\n\r\nGET /judge/smuggled HTTP/1.1\r\n\r\n".encode()
        )
        assert 400 <= (await client.read_head()).status < 500
        async with asyncio.timeout(20):
            await client.reader.read()
        assert heads == []


async def test_websocket_is_refused_in_words_and_other_upgrades_are_ignored() -> None:
    async with open_scene() as scene:
        heads = await publish_echo(scene)
        upgrade = (
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhl\r\nSec-WebSocket-Version: 13\r\n"
        )
        answer = await scene.ask("/judge/ws", headers=upgrade)
        assert (answer.status, json.loads(answer.body)["error"]["type"]) == (501, "retinue_unsupported")
        assert heads == []
        h2c = await scene.ask(
            "/judge/", headers="Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
        )
        assert h2c.status == 200
        assert b"h2c" not in heads[0]


async def test_this_is_not_a_forward_proxy() -> None:
    async with open_scene() as scene:
        await publish_echo(scene)
        client = await scene.connect()
        await client.send(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n")
        assert (await client.read_head()).status == 501
        assert (await scene.ask("http://127.0.0.1:22/judge/x")).body == b"ok"


async def test_an_answer_header_with_a_control_character_is_our_failure_not_a_second_header() -> None:
    async with open_scene() as scene:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nX: a\x01b\r\nContent-Length: 2\r\n\r\nok")
            await reader.read()

        scene.publish(make_route(make_backend(await scene.open_raw_backend(serve))))
        answer = await scene.ask("/judge/")
        assert (answer.status, answer.headers["x-retinue-outcome"]) == (409, "infra_failed")


async def test_the_gateways_own_pages_tell_what_is_there() -> None:
    async with open_scene() as scene:
        await publish_echo(scene)
        await scene.ask("/judge/")
        services = json.loads((await scene.ask("/")).body)["services"]
        assert services == {"judge": {"url": "/judge", "is_ready": True, "backends": 1, "in_flight": 0}}
        assert json.loads((await scene.ask("/-/health")).body)["status"] == "ok"
        metrics = (await scene.ask("/-/metrics")).body.decode()
        assert "\nretinue_gateway_requests_total 1\n" in metrics
        assert '\nretinue_gateway_backends_usable{service="judge"} 1\n' in metrics
        assert (await scene.ask("/metrics")).body.decode() == metrics
        assert (await scene.ask("/-/nothing")).status == 404
        unknown = json.loads((await scene.ask("/jugde/v1")).body)["error"]
        assert (unknown["type"], "did you mean 'judge'" in unknown["message"]) == ("retinue_unknown_service", True)


@pytest.mark.parametrize("sent", [b"GARBAGE\r\n\r\n", b"GET /judge/ HTTP/1.1\r\nX: %b\r\n\r\n" % (b"x" * 200_000)])
async def test_what_is_no_request_gets_the_librarys_plain_400_and_no_outcome(sent: bytes) -> None:
    async with open_scene() as scene:
        client = await scene.connect()
        await client.send(sent)
        answer = await client.read_head()
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (400, "text/plain")
        assert "x-retinue-outcome" not in answer.headers
