"""The client's HTTP against servers that frame, interrupt and end their answers in every way."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from client_scenes import Asked, Script, answer_one, hang, serving, serving_in_thread

from retinue.client import Retinue
from retinue.client.answer import HEAD_BYTES_MAX, LINE_BYTES_MAX, Broken
from retinue.client.http import Pool, parse_target
from retinue.errors import UsageError

HELLO = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool(connections_max=2)
    yield pool
    await pool.close()


def say(raw: bytes, leave: bool = False) -> Script:
    """Answer with these bytes; `leave`: and close."""

    async def script(asked: Asked) -> None:
        await asked.write(raw)
        if leave:
            raise ConnectionResetError

    return script


async def read(pool: Pool, url: str) -> tuple[int, bytes]:
    async with asyncio.timeout(20), pool.ask(parse_target(url), "GET", "/", {}) as answer:
        return answer.status, await answer.read_whole()


@pytest.mark.parametrize(
    ("raw", "leave", "is_kept"),
    [
        (HELLO + b"Content-Length: 5\r\n\r\nhello", False, True),
        (HELLO + b"content-length:5\r\nContent-Length: 5\r\n\r\nhello", False, True),
        (HELLO + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n003;x=y\r\nllo\r\n0\r\nA: b\r\n\r\n", False, True),
        (HELLO + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", True, False),
        (HELLO + b"\r\nhello", True, False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", True, False),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n"
            + HELLO
            + b"Content-Length: 5\r\n\r\nhello",
            False,
            True,
        ),
    ],
)
async def test_a_body_is_read_to_its_end_however_it_is_framed(
    pool: Pool, raw: bytes, leave: bool, is_kept: bool
) -> None:
    async with serving(say(raw, leave)) as server:
        assert [await read(pool, server.url) for _ in range(2)] == [(200, b"hello")] * 2
        assert server.connections == (1 if is_kept else 2)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "connection closed"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200", "connection closed in an answer"),
        (HELLO + b"Content-Length: 6\r\n\r\nhello", "connection closed in an answer"),
        (HELLO + b"Content-Length: 5, 6\r\n\r\nhello", "content length"),
        (HELLO + b"Content-Length: +5\r\n\r\nhello", "content length"),
        (HELLO + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding"),
        (HELLO + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello", "connection closed in an answer"),
        (HELLO + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n", "a chunk longer than it says"),
        (HELLO + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", "no chunk size"),
        (HELLO + b"A: b\r\n folded\r\n\r\n", "a bad header field"),
        (HELLO + b"A: " + b"b" * (2 * HEAD_BYTES_MAX) + b"\r\n\r\n", "bytes of head"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9, "interim"),
        (HELLO + b"Content-Length: 9999999\r\n\r\n" + b"x" * 9999999, "unreadable answer: more than"),
    ],
)
async def test_an_answer_that_is_cut_or_not_http_is_broken_and_never_a_whole_one(
    pool: Pool, raw: bytes, message: str
) -> None:
    async with serving(say(raw, leave=True)) as server:
        with pytest.raises(Broken, match=message):
            await read(pool, server.url)
        await server.until_closed()


async def test_a_line_without_end_is_refused_before_it_fills_the_memory(pool: Pool) -> None:
    async with serving(say(HELLO + b"\r\n" + b"x" * (2 * LINE_BYTES_MAX))) as server:
        with pytest.raises(Broken, match="a line of more than"):
            async with pool.ask(parse_target(server.url), "GET", "/", {}) as answer:
                await answer.read_line()


async def test_an_answer_left_half_read_closes_its_connection(pool: Pool) -> None:
    async with serving(say(HELLO + b"Content-Length: 10\r\n\r\nhello")) as server:
        async with pool.ask(parse_target(server.url), "GET", "/", {}) as answer:
            assert await answer.read_piece() == b"hello"
        await server.until_closed()


async def test_more_calls_than_connections_wait_their_turn(pool: Pool) -> None:
    async with serving(say(HELLO + b"Content-Length: 2\r\n\r\nok")) as server:
        found = await asyncio.gather(*(read(pool, server.url) for _ in range(20)))
        assert found == [(200, b"ok")] * 20
        assert server.connections <= 2


async def test_a_server_that_refuses_before_it_has_read_the_body_is_understood(pool: Pool) -> None:
    async def refuse_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await gone.wait()
        writer.transport.abort()

    gone = asyncio.Event()
    listening = await asyncio.start_server(refuse_early, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(20), pool.ask(parse_target(url), "POST", "/", {}, b"x" * 20_000_000) as answer:
        assert (answer.status, await answer.read_whole()) == (413, b"no")
    gone.set()
    listening.close()
    await pool.close()


async def test_a_header_value_that_would_be_two_headers_is_refused(pool: Pool) -> None:
    with pytest.raises(UsageError, match="X-Retinue-Caller"):
        async with pool.ask(parse_target("http://127.0.0.1:9"), "GET", "/", {"X-Retinue-Caller": "a\r\nB: c"}):
            pass


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1:1", "127.0.0.1:80", "http://", "http://h:99999", "http://h/?a", "unix:relative", "unix:/"],
)
def test_an_address_that_cannot_be_used_is_refused_by_name(url: str) -> None:
    with pytest.raises(UsageError, match="cannot use address"):
        parse_target(url)


def test_an_address_of_ip_version_six_keeps_its_brackets_in_the_host_header() -> None:
    assert parse_target("http://[::1]:80/a/").authority == "[::1]:80"
    assert parse_target("http://[::1]:80/a/").prefix == "/a"


def test_one_client_serves_two_event_loops_at_once_and_one_after_the_other() -> None:
    scores: list[Any] = []
    with serving_in_thread(answer_one) as server:
        client = Retinue(server.url)

        async def use() -> None:
            async with client:
                scores.extend([(await client.check("math", response="4")).score for _ in range(3)])

        threads = [threading.Thread(target=asyncio.run, args=(use(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        asyncio.run(use())
        assert scores == [1.0] * 9
        # Each loop has its own connections and never touches another's.
        assert server.connections == 3


async def test_closing_the_client_while_it_is_used_leaves_the_call_alone(pool: Pool) -> None:
    arrived = asyncio.Event()

    async def hang_loudly(asked: Asked) -> None:
        arrived.set()
        await hang(asked)

    async with serving(hang_loudly) as server, Retinue(server.url) as r:
        task = asyncio.create_task(r.check("math", response="4", deadline_s=0.5))
        await asyncio.wait([asyncio.create_task(arrived.wait()), task], return_when=asyncio.FIRST_COMPLETED)
        await r.close()
        assert (await task).event == "deadline passed"


async def test_a_closed_client_refuses_every_call_of_its_loop_and_sends_nothing() -> None:
    async with serving(answer_one) as server, Retinue(server.url) as r:
        await r.close()
        with pytest.raises(UsageError, match="the client was closed; make another"):
            await r.check("math", response="4")
        with pytest.raises(UsageError, match="closed"):
            r.check_many([{"verifier": "math", "response": "4"}])
        with pytest.raises(UsageError, match="closed"):
            await r.gate(timeout_s=0.1)
        with pytest.raises(UsageError, match="closed"):
            await r.__aenter__()
        assert server.connections == 0
