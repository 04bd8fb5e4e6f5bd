"""Answers that break off: a stream without its end, a reader that leaves, a page that breaks every time."""

import pytest
from client_sandbox_scenes import cut, pages, result, stream_lines
from client_scenes import Asked, Server, hang, serving, until

from retinue.client import Retinue, SandboxLost, SandboxUnsure, sandbox_asking


def open_client(server: Server) -> Retinue:
    return Retinue({"sandbox": server.url}, hold_s=5.0)


async def test_a_stream_comes_piece_by_piece_and_ends_with_its_end() -> None:
    async def run(asked: Asked) -> None:
        await stream_lines(
            asked,
            {"stream": "stdout", "encoding": "utf-8", "data": "a\n"},
            {"stream": "stderr", "encoding": "base64", "data": "/w=="},
            {"end": result(code=3)},
        )
        await asked.end_stream()

    async with serving(pages(exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        async with box.stream(["x"], timeout_s=1) as pieces:
            found = [(piece.stream, piece.raw) async for piece in pieces]
        assert found == [("stdout", b"a\n"), ("stderr", b"\xff")]
        assert pieces.ended is not None
        assert pieces.ended.code == 3
        assert server.asked[1].json == {"argv": ["x"], "stream": True, "timeout_s": 1}


async def test_a_stream_that_breaks_off_is_never_taken_for_an_end() -> None:
    async def run(asked: Asked) -> None:
        await stream_lines(asked, {"stream": "stdout", "encoding": "utf-8", "data": "a\n"})
        await asked.end_stream()

    async with serving(pages(exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        async with box.stream(["x"], timeout_s=1) as pieces:
            assert (await anext(pieces)).text == "a\n"
            with pytest.raises(SandboxUnsure, match="ended before the command"):
                await anext(pieces)
        assert pieces.ended is None


async def test_leaving_a_stream_early_hangs_up() -> None:
    async def run(asked: Asked) -> None:
        await stream_lines(asked, {"stream": "stdout", "encoding": "utf-8", "data": "a\n"})
        await hang(asked)

    async with serving(pages(exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        async with box.stream(["x"], timeout_s=60) as pieces:
            assert (await anext(pieces)).text == "a\n"
            before = len(server.open)
        await until(lambda: len(server.open) < before, "the stream's connection is closed")


async def test_a_stream_whose_sandbox_was_lost_ends_with_our_failure() -> None:
    async def run(asked: Asked) -> None:
        await stream_lines(asked, {"end": result("infra_failed", cause="shard died", node="n3")})
        await asked.end_stream()

    async with serving(pages(exec=run)) as server, open_client(server) as r, r.sandbox("img") as box:
        async with box.stream(["x"], timeout_s=1) as pieces:
            with pytest.raises(SandboxLost, match="shard died"):
                await anext(pieces)
        assert pieces.ended is None


async def test_what_breaks_every_time_is_given_up_long_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_asking, "BROKEN_MAX", 2)
    async with serving(pages(files=cut())) as server, open_client(server) as r, r.sandbox("img") as box:
        with pytest.raises(SandboxLost, match="broken too often"):
            await box.files.list("/")
        assert sum(asked.path.startswith(f"/v1/sandboxes/{box.id}/files") for asked in server.asked) >= 3
