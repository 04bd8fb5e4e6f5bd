"""The client against the real service, its shards and real sandboxes: every call that there is, once for each face."""

import asyncio
import os
import signal
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sandbox_service import Service, real_service

from retinue.client import (
    Ended,
    EndKind,
    Retinue,
    SandboxGone,
    SandboxLost,
    SandboxNoFile,
    SandboxRefused,
    SyncRetinue,
    sandbox_records,
)
from retinue.sandbox import exec_records, file_records, server


@pytest.fixture
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with real_service(tmp_path_factory.getbasetemp()) as opened:
        yield opened


def read_url(service: Service) -> str:
    return str(service.session._base_url).rstrip("/")


async def test_commands_end_in_every_way_and_the_sandbox_is_gone_afterwards(service: Service) -> None:
    async with Retinue({"sandbox": read_url(service)}) as r:
        async with r.sandbox(service.image, env={"A": "1"}, limits={"memory": "64MiB"}) as box:
            assert box.node == "n1"
            assert (await box.exec("echo $A; cat", stdin=b"\xff\x00")).stdout.raw == b"1\n\xff\x00"
            assert (await box.exec("echo no >&2; exit 3")).stderr.text == "no\n"
            assert (await box.exec(["/nope"])).code == 127
            late = await box.exec("echo so far; sleep 60", timeout_s=0.3)
            assert (late.outcome, late.stdout.text, late.left) == (EndKind.TIMED_OUT, "so far\n", 0)
            flood = await box.exec("yes | head -c 3000000", output=(10, 20))
            assert (len(flood.stdout.head), len(flood.stdout.tail), flood.stdout.total_bytes) == (10, 20, 3_000_000)
            assert flood.stdout.dropped_bytes == 2_999_970
            assert (await box.exec("kill -9 $$")).signal == 9
            assert (await box.exec("x=x; while :; do x=$x$x; done", timeout_s=30)).outcome is EndKind.MEMORY_EXCEEDED
        with pytest.raises(SandboxGone):
            await box.exec("true")
    assert len(service.host.seats) == 0


async def test_a_stream_and_background_processes_of_a_real_sandbox(service: Service) -> None:
    async with Retinue({"sandbox": read_url(service)}) as r, r.sandbox(service.image) as box:
        async with box.stream("echo a; echo b >&2; exit 4", timeout_s=20) as pieces:
            found = {piece.stream: piece.text async for piece in pieces}
        assert found == {"stdout": "a\n", "stderr": "b\n"}
        assert isinstance(pieces.ended, Ended)
        assert pieces.ended.code == 4
        process = await box.start("cat; echo end", stdin_open=True)
        await process.write("hello\n")
        assert await process.wait(0.05) is None
        assert (await process.show()).is_running
        await process.write(b"", close=True)
        ended = await process.wait()
        assert ended is not None
        assert ended.stdout.text == "hello\nend\n"
        stretch = await process.read(offset=6)
        assert (stretch.raw, stretch.total_bytes, stretch.is_running) == (b"end\n", 10, False)
        sleeper = await box.start("sleep 60")
        assert await sleeper.signal("KILL") == 1
        ended = await sleeper.wait(20)
        assert ended is not None
        assert (ended.outcome, ended.signal) == (EndKind.SIGNALLED, 9)
        assert [running.name for running in await box.processes()] == [process.name, sleeper.name]
        await process.forget()
        assert await (await box.start("sleep 60")).kill() == 0


async def test_files_and_archives_of_a_real_sandbox(service: Service, tmp_path: Path) -> None:
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "file").write_bytes(b"\x00" * 3_000_000)
    async with Retinue({"sandbox": read_url(service)}) as r, r.sandbox(service.image) as box:
        files = box.files
        await files.write("/new dir/f", "hé", mode=0o640)
        await files.write("/new dir/f", b"!", append=True)
        assert await files.read("/new dir/f") == "hé!".encode()
        assert await files.read("/new dir/f", offset=1, limit=2) == "é".encode()
        entry = await files.stat("/new dir/f")
        assert (entry.type, entry.size, entry.mode) == ("file", 4, 0o640)
        await files.make_directory("/new dir/sub")
        assert sorted(entry.name for entry in await files.list("/new dir")) == ["f", "sub"]
        with pytest.raises(SandboxRefused):
            await files.remove("/new dir")
        assert await files.remove("/new dir", recursive=True)
        assert not await files.remove("/new dir")
        assert not await files.exists("/new dir/f")
        with pytest.raises(SandboxNoFile):
            await files.read("/new dir/f")
        assert (await files.upload(tmp_path / "source", "/up")).files == 1
        size = await files.download("/up", tmp_path / "out.tar")
        assert size == (tmp_path / "out.tar").stat().st_size
        with tarfile.open(tmp_path / "out.tar") as tar:
            assert sorted(tar.getnames()) == ["deep", "deep/file"]
        assert (await files.upload((tmp_path / "out.tar").read_bytes(), "/again")).files == 1
        assert (await box.exec("wc -c < /again/deep/file")).stdout.text.strip() == "3000000"
        with pytest.raises(SandboxRefused):
            await files.upload(b"no archive" * 100_000, "/bad")
        assert (await box.exec("true")).is_ok


async def test_a_lost_sandbox_is_our_failure_with_node_and_cause(service: Service) -> None:
    async with Retinue({"sandbox": read_url(service)}) as r, r.sandbox(service.image) as box:
        slot = service.host.seats.list()[0].slot
        running = asyncio.create_task(box.exec("touch /begun; sleep 60"))
        async with asyncio.timeout(20):
            while not (await box.exec("[ -e /begun ]")).is_ok:
                pass
        os.kill(slot.pid, signal.SIGKILL)
        with pytest.raises(SandboxLost) as caught:
            await running
        assert (caught.value.node, caught.value.sandbox) == ("n1", box.id)
        assert caught.value.cause


async def test_the_same_without_asyncio(service: Service) -> None:
    await asyncio.to_thread(use_without_asyncio, read_url(service), service.image)
    assert len(service.host.seats) == 0


def use_without_asyncio(url: str, image: str) -> None:
    with SyncRetinue({"sandbox": url}) as r, r.sandbox(image, user=1000, workdir="/tmp") as box:
        assert box.exec("id -u; pwd").stdout.text == "1000\n/tmp\n"
        with box.stream("echo a", timeout_s=20) as pieces:
            assert [piece.raw for piece in pieces] == [b"a\n"]
        assert pieces.ended is not None
        process = box.start("sleep 60")
        assert process.kill() == 0
        ended = process.wait()
        assert ended is not None
        assert ended.signal == 9
        box.files.write("/tmp/x", "1")
        assert box.files.read("/tmp/x") == b"1"
        assert box.show()["limits"]["pids"] == 64


def test_the_records_are_those_of_the_service() -> None:
    """Two rooms of one floor do not know each other: what travels is written down twice, and compared here."""
    ends = {kind.value for kind in exec_records.ExecOutcome} - {sandbox_records.INFRA_FAILED}
    assert {kind.value for kind in EndKind} == ends
    pairs = [
        (sandbox_records.Result, exec_records.ExecResult),
        (sandbox_records._Output, exec_records.Output),
        (sandbox_records.View, exec_records.ProcessView),
        (sandbox_records.Entry, file_records.Entry),
        (sandbox_records.Uploaded, file_records.Uploaded),
        (sandbox_records.Made, server.MadeView),
    ]
    for ours, theirs in pairs:
        assert set(ours.__struct_fields__) == set(theirs.__struct_fields__), ours
