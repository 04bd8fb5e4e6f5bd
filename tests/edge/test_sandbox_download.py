"""A tree is packed as it is while it is read: links as links, nothing opened but files, and always a whole archive."""

import asyncio
import os
import socket
import stat
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_scenes import Ground, count_fds, find_reason, is_same, make_sparse, read_tar, run_tar, settle
from test_sandbox_files import make_deep

from retinue.sandbox import archive_out, files
from retinue.sandbox.file_errors import FileFailed, Reason
from retinue.sandbox.file_records import TransferLimits

MIB = 2**20


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    assert made.is_outside_untouched()
    made.close()


def fill(top: Path) -> None:
    """One of each."""
    (top / "d" / "sub").mkdir(parents=True)
    (top / "d" / "file").write_bytes(os.urandom(2 * MIB + 77))
    (top / "d" / "file").chmod(0o640)
    (top / "d" / "empty").touch(0o4711)
    os.link(top / "d" / "file", top / "again")
    (top / "link").symlink_to("../outside/secret")
    (top / "d" / "sub" / ("n" * 200)).write_bytes(b"long")
    (top / "d" / ("long" * 40)).symlink_to("x" * 300)
    (top / os.fsdecode(b"bad\xff" * 30)).write_bytes(b"bad")
    (top / "line\nbreak").write_bytes(b"odd")
    os.utime(top / "d" / "file", (1_500_000_000, 1_500_000_000))


async def test_gnu_tar_and_python_unpack_exactly_what_was_there(ground: Ground, tmp_path: Path) -> None:
    before = count_fds()
    (ground.root / "top").mkdir()
    fill(ground.root / "top")
    data, result = await ground.download("/top")
    assert (result.files, result.directories, result.links, result.skipped) == (5, 2, 3, 0)
    for name in ("gnu", "python"):
        (tmp_path / name).mkdir()
    run_tar("-C", tmp_path / "gnu", "-xp", data=data)
    (tmp_path / "x.tar").write_bytes(data)
    with tarfile.open(tmp_path / "x.tar", errors="surrogateescape") as tar:
        # Python 3.14 would otherwise change modes, and 3.11 has no word for it.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        tar.extractall(tmp_path / "python")
    for name in ("gnu", "python"):
        assert is_same(tmp_path / name, ground.root / "top")
        status = (tmp_path / name / "d" / "file").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime, status.st_nlink) == (0o640, 1_500_000_000, 2)
        assert stat.S_IMODE((tmp_path / name / "d" / "empty").stat().st_mode) == 0o711
    await settle(before)


async def test_what_was_downloaded_uploads_to_the_same(ground: Ground) -> None:
    (ground.root / "top").mkdir()
    fill(ground.root / "top")
    (ground.root / "top" / "d" / "sub").chmod(0o500)
    os.utime(ground.root / "top" / "d", (1_400_000_000, 1_400_000_000))
    data, _ = await ground.download("/top")
    result = await ground.upload(data, "/copy")
    assert result.files == 5
    assert is_same(ground.root / "top", ground.root / "copy")
    assert stat.S_IMODE((ground.root / "copy/d/sub").stat().st_mode) == 0o500
    assert (ground.root / "copy/d").stat().st_mtime == 1_400_000_000
    assert (ground.root / "copy/again").samefile(ground.root / "copy/d/file")


async def test_one_file_is_an_archive_of_one_entry(ground: Ground) -> None:
    (ground.root / "d").mkdir()
    (ground.root / "d" / "file").write_bytes(b"abc")
    (ground.root / "link").symlink_to("/d/file")
    assert list(read_tar((await ground.download("/d/file"))[0])) == ["file"]
    assert list(read_tar((await ground.download("/link"))[0])) == ["link"]
    data, result = await ground.download("/d/")
    assert (list(read_tar(data)), result.bytes) == (["file"], 3)


async def test_what_is_wrong_with_the_path_is_said_before_anything_is_sent(ground: Ground) -> None:
    (ground.root / "out").symlink_to(ground.outside)
    os.mkfifo(ground.root / "fifo")
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)

    for path, reason in (
        ("/missing", Reason.NOT_FOUND),
        ("/out", Reason.NOT_FOUND),
        ("/out/secret", Reason.NOT_FOUND),
        ("/fifo", Reason.NOT_A_FILE),
        ("/fifo/x", Reason.NOT_A_DIRECTORY),
    ):
        assert await find_reason(files.download(ground.fd, path, send)) is reason
    assert sent == []


async def test_what_is_no_file_and_what_may_not_be_read_is_counted(ground: Ground) -> None:
    (ground.root / "d").mkdir()
    os.mkfifo(ground.root / "d" / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(ground.root / "d" / "sock"))
    for name in ("closed", "file"):
        (ground.root / "d" / name).write_bytes(b"x")
    (ground.root / "d" / "closed").chmod(0)
    (ground.root / "d" / "shut").mkdir(0)
    data, result = await ground.download("/d")
    if os.geteuid() != 0:
        assert sorted(read_tar(data)) == ["file"]
        assert (result.files, result.directories, result.skipped, len(result.skipped_names)) == (1, 0, 4, 3)


async def test_a_terabyte_of_holes_is_refused_and_a_smaller_one_sent_as_zeros(ground: Ground) -> None:
    make_sparse(ground.root / "huge", 2**40)
    assert await find_reason(ground.download()) is Reason.TOO_LARGE
    make_sparse(ground.root / "huge", 9 * MIB + 1, (5 * MIB, b"x"))
    data, result = await ground.download()
    assert (len(data) % 512, result.bytes, data.count(b"\0") > 9 * MIB) == (0, 9 * MIB + 1, True)


@pytest.mark.parametrize(("change", "changed"), [("shrink", 1), ("grow", 0), ("remove", 0)])
async def test_a_file_that_changes_while_it_is_read_keeps_the_archive_whole(
    ground: Ground, change: str, changed: int
) -> None:
    (ground.root / "a").write_bytes(b"a" * (2 * MIB))
    pieces: list[bytes] = []

    async def send(data: bytes) -> None:
        if not pieces:
            if change == "shrink":
                os.truncate(ground.root / "a", MIB + 5)
            elif change == "grow":
                os.truncate(ground.root / "a", 9 * MIB)
            else:
                (ground.root / "a").unlink()
        pieces.append(data)

    result = await files.download(ground.fd, "/", send)
    assert result.changed == changed
    data = b"".join(pieces)
    assert read_tar(data)["a"].size == 2 * MIB
    assert data[512 : 512 + 2 * MIB].rstrip(b"\0") == b"a" * (MIB + 5 if change == "shrink" else 2 * MIB)
    assert len(data) == 512 + 2 * MIB + 1024


async def test_entries_and_bytes_are_limited(ground: Ground) -> None:
    for number in range(20):
        (ground.root / f"{number}").write_bytes(b"12345")
    assert await find_reason(ground.download(entries=19)) is Reason.TOO_MANY
    assert await find_reason(ground.download(bytes=99)) is Reason.TOO_LARGE
    assert (await ground.download(entries=20, bytes=100))[1].files == 20


async def test_a_tree_deeper_than_a_path_is_packed_as_far_as_one_reaches(ground: Ground) -> None:
    make_deep(ground.root, 5000)
    before = count_fds()
    data, result = await ground.download()
    assert (result.files, result.skipped) == (0, 1)
    assert result.directories == len(read_tar(data)) > 2000
    await settle(before)


async def test_a_thousand_entries_of_which_nothing_comes_do_not_hold_the_line(ground: Ground) -> None:
    for number in range(3000):
        os.mkfifo(ground.root / f"{number}")
    _, result = await ground.download()
    assert (result.skipped, len(result.skipped_names)) == (3000, 3)


async def test_a_reader_that_stops_costs_no_thread_and_is_ended(ground: Ground) -> None:
    before = count_fds()
    (ground.root / "a").write_bytes(bytes(MIB))
    waiting = asyncio.Event()

    async def send(data: bytes) -> None:
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(files.download(ground.fd, "/", send, TransferLimits(time_s=60)))
    await waiting.wait()
    async with asyncio.timeout(10):
        while [thread for thread in threading.enumerate() if thread.name == "aside"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    assert await find_reason(files.download(ground.fd, "/", send, TransferLimits(time_s=0.3))) is Reason.LATE
    await settle(before)


async def test_a_download_cancelled_at_any_moment_leaves_no_descriptor(ground: Ground) -> None:
    before = count_fds()
    fill(ground.root)
    for pause in range(40):
        task = asyncio.create_task(ground.download())
        for _ in range(pause):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await settle(before)


async def test_a_disk_that_fails_is_ours_and_no_file_is_left_out_for_it(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ground.root / "a").write_bytes(b"x")
    real = os.readlink
    (ground.root / "l").symlink_to("x")

    def fail(*words: object, **more: object) -> bytes:
        raise OSError(107, "Transport endpoint is not connected")

    monkeypatch.setattr(archive_out.os, "readlink", fail)
    with pytest.raises(FileFailed):
        await ground.download()
    monkeypatch.setattr(archive_out.os, "readlink", real)
