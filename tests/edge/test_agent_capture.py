"""Output is kept, bounded and redacted; a loud service slows itself down and nobody else."""

import asyncio
import os
from pathlib import Path

import pytest
from agent_doubles import FileWriter, wait_for
from agent_stage import open_stage

from retinue.node import capture
from retinue.node.capture import Capture, LogFiles
from retinue.node.redact import Redactor
from retinue.terms.launch import ProbeKind, ProbeSpec
from retinue.terms.replica import ReadinessChanged

FLOOD = "import os\nblock = b'x' * 65535 + b'\\n'\nwhile True: os.write(1, block)\n"
SECRET = "correct-horse-battery"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 21, 22, 1000])
def test_a_secret_is_redacted_wherever_the_chunks_are_cut(size: int) -> None:
    redactor = Redactor([SECRET])
    text = f"a{SECRET}b\n{SECRET}{SECRET[:5]}\ncorrect-{SECRET}\n{SECRET[:-1]}".encode()
    shown = b"".join(redactor.feed(text[i : i + size]) for i in range(0, len(text), size)) + redactor.finish()
    masked = f"a[redacted]b\n[redacted]{SECRET[:5]}\ncorrect-[redacted]\n{SECRET[:-1]}".encode()
    assert shown == masked


@pytest.mark.parametrize("size", [1, 2, 4, 5, 6, 1000])
def test_secrets_that_overlap_or_begin_alike_are_both_redacted(size: int) -> None:
    redactor = Redactor(["abcd", "abcdef-long", "xxab", "cdzz"])
    text = b"abcdef-long abcd abcdef xxab\nxxabcdzz\n"
    shown = b"".join(redactor.feed(text[i : i + size]) for i in range(0, len(text), size)) + redactor.finish()
    for secret in (b"abcd", b"abcdef-long", b"xxab", b"cdzz"):
        assert secret not in shown


def test_a_finished_line_is_not_held_back() -> None:
    redactor = Redactor([SECRET])
    assert redactor.feed(b"listening\n") == b"listening\n"
    assert redactor.feed(b"the cor") == b"the "
    assert redactor.finish() == b"cor"


async def test_secrets_and_the_runs_token_reach_neither_log_nor_last_lines(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-a-file\n")
    async with open_stage(tmp_path) as stage:
        script = "import os, sys\nprint(os.environ['A'], os.environ['B'], 'the-run-token')\nraise SystemExit(1)"
        spec = stage.build_spec(script, secrets={"A": SECRET}, secret_files={"B": str(tmp_path / "key")})
        await stage.start(spec)
        exited = await stage.wait_exit("svc/0")
        assert exited.last_lines == "[redacted] [redacted] [redacted]"
        assert stage.log_text(spec) == "[redacted] [redacted] [redacted]\n"


async def test_a_secret_file_that_is_not_there_refuses_the_launch_without_its_content(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.launch(stage.build_spec("", secret_files={"B": "/nonexistent/key"}))
        refused = await stage.wait_refused("svc/0")
        assert refused.cause == "cannot read secret B from '/nonexistent/key': No such file or directory"
        assert not refused.retryable


async def test_a_flood_is_bounded_and_the_agent_still_obeys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "HEAD_BYTES", 1 << 20)
    monkeypatch.setattr(capture, "HALF_BYTES", 1 << 20)
    monkeypatch.setattr(capture, "RATE_BYTES_S", 8 << 20)
    ready = ProbeSpec(ProbeKind.READINESS, exec_argv=("true",), period_s=0.05, timeout_s=20.0)
    async with open_stage(tmp_path) as stage:
        spec = stage.build_spec(FLOOD)
        began_s = asyncio.get_running_loop().time()
        await stage.start(spec)
        quiet = stage.build_spec("import signal; signal.pause()", replica="svc/1", index=1, probes=(ready,))
        await stage.start(quiet)
        assert (await stage.wait_event("svc/1", ReadinessChanged)).is_ready
        folder = Path(spec.log_path).parent
        await wait_for(lambda: (folder / "launch-1.tail.1.log").exists(), "second half")
        agent = stage.agent.slots
        assert agent is not None
        assert agent.site.lag.worst_since(began_s) < 5.0
        stage.stop("svc/0", 1)
        await stage.wait_exit("svc/0")
        sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name.startswith("launch-1")}
        assert set(sizes) == {"launch-1.log", "launch-1.tail.0.log", "launch-1.tail.1.log"}
        assert all(size <= (1 << 20) + 200 for size in sizes.values())


async def test_a_service_that_writes_faster_than_its_rate_waits_in_its_own_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "BURST_BYTES", 100_000)
    monkeypatch.setattr(capture, "RATE_BYTES_S", 1)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    taken = Capture(read_end, LogFiles(str(tmp_path / "a.log"), FileWriter()), Redactor(()))
    taken.start()

    def is_stuck() -> bool:
        try:
            os.write(write_end, b"y" * 4096)
        except BlockingIOError:
            return taken.bytes_read >= 100_000
        return False

    await wait_for(is_stuck, "full pipe")
    assert taken.bytes_read <= 100_000 + capture.CHUNK_BYTES
    os.close(write_end)
    taken.finish()
    assert (tmp_path / "a.log").stat().st_size == taken.bytes_read


def test_the_head_and_the_newest_stay_and_the_gap_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "HEAD_BYTES", 10)
    monkeypatch.setattr(capture, "HALF_BYTES", 20)
    files = LogFiles(str(tmp_path / "launch-1.log"), FileWriter())
    text = "".join(f"{number:04}\n" for number in range(30)).encode()
    for start in range(0, len(text), 7):
        files.write(text[start : start + 7])
    head = (tmp_path / "launch-1.log").read_bytes()
    halves = b"".join((tmp_path / f"launch-1.tail.{half}.log").read_bytes() for half in (0, 1))
    assert head.startswith(b"0000\n0001\n")
    assert b"0028\n0029\n" in halves
    assert files.dropped_bytes == 100
    assert b"[retinue: 100 bytes between the head and this were dropped]" in halves
    assert b"0010\n" not in head + halves


def test_last_lines_are_twenty_lines_and_two_kib_at_most(tmp_path: Path) -> None:
    async def run(data: bytes) -> str:
        read_end, write_end = os.pipe()
        taken = Capture(read_end, LogFiles(str(tmp_path / "b.log"), FileWriter()), Redactor(()))
        os.write(write_end, data)
        os.close(write_end)
        taken.finish()
        return taken.last_lines()

    assert asyncio.run(run(b"\n".join(b"%d" % n for n in range(50)))).splitlines() == [str(n) for n in range(30, 50)]
    assert len(asyncio.run(run(b"z" * 9000)).encode()) == 2048
