"""An archive is unpacked below its target and nowhere else, whatever it says and whatever lies there."""

import asyncio
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_scenes import (
    Ground,
    count_fds,
    directory,
    entry,
    file,
    find_reason,
    hardlink,
    is_same,
    make_sparse,
    make_tar,
    run_tar,
    settle,
    symlink,
    upload,
)

from retinue.sandbox import files
from retinue.sandbox.file_errors import Reason
from retinue.sandbox.file_records import TransferLimits

MIB = 2**20


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    assert made.is_outside_untouched()
    made.close()


async def test_everything_an_archive_may_hold_arrives_with_mode_and_time(ground: Ground) -> None:
    before = count_fds()
    data = make_tar(
        directory("d", 0o555),
        file("d/run", b"#!/bin/sh\n", 0o6755),
        file("./deep/er/file", b"x" * MIB, 0o600),
        symlink("d/link", "../../outside/secret"),
        hardlink("hard", "d/run"),
        directory("tmp", 0o1777),
        entry("fifo", tarfile.FIFOTYPE),
        entry("null", tarfile.CHRTYPE),
    )
    result = await ground.upload(data, "/a/b")
    top = ground.root / "a" / "b"
    assert (result.files, result.directories, result.links, result.bytes) == (2, 2, 2, MIB + 10)
    assert (result.skipped, result.skipped_names) == (2, ["fifo", "null"])
    modes = {name: stat.S_IMODE((top / name).lstat().st_mode) for name in ("d", "d/run", "deep/er/file", "tmp", "deep")}
    assert modes == {"d": 0o555, "d/run": 0o755, "deep/er/file": 0o600, "tmp": 0o1777, "deep": 0o755}
    assert {(top / name).lstat().st_mtime for name in ("d", "d/run", "d/link", "tmp")} == {1_600_000_000}
    assert os.readlink(top / "d/link") == "../../outside/secret"
    assert (top / "hard").samefile(top / "d/run")
    assert sorted(os.listdir(top)) == ["d", "deep", "hard", "tmp"]
    await settle(before)


@pytest.mark.parametrize("piece_bytes", [1, 100, 512, 70_000])
async def test_pieces_of_any_length_give_the_same(ground: Ground, piece_bytes: int) -> None:
    content = os.urandom(5000)
    data = make_tar(file("a" * 120, content), directory("d"), file("d/ü" * 50, content))
    await ground.upload(data, piece_bytes=piece_bytes)
    assert {path.read_bytes() for path in (ground.root / "in").rglob("*") if path.is_file()} == {content}


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/../evil", "a/b/../../../evil", "..", "a/..", "./../evil", "//../evil"]
)
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
async def test_no_name_climbs_out_of_the_target(ground: Ground, name: str, kind: bytes) -> None:
    data = make_tar(file("a/ok", b"x"), entry(name, kind, "a/ok"))
    assert await find_reason(ground.upload(data)) is Reason.OUTSIDE
    assert sorted(os.listdir(ground.root)) == ["in"]


async def test_an_absolute_name_lies_below_the_target(ground: Ground) -> None:
    await ground.upload(make_tar(file(f"{ground.outside}/secret", b"overwritten")))
    assert (ground.root / "in" / str(ground.outside).lstrip("/") / "secret").read_bytes() == b"overwritten"


@pytest.mark.parametrize("way", ["absolute", "relative", "two steps", "planted before", "dangling"])
@pytest.mark.parametrize("path", ["/", "/in"])
async def test_no_entry_leaves_through_a_link(ground: Ground, way: str, path: str) -> None:
    (ground.root / "in").mkdir()
    top = ground.root if path == "/" else ground.root / "in"
    climb = "../" * 12 + str(ground.outside).lstrip("/")
    entries = {
        "absolute": [symlink("l", str(ground.outside))],
        "relative": [symlink("l", climb)],
        "two steps": [directory("d"), symlink("d/up", "../.."), symlink("l", "d/up/../outside")],
        "planted before": [],
        "dangling": [symlink("l", str(ground.outside / "new"))],
    }[way]
    if way == "planted before":
        (top / "l").symlink_to(ground.outside)
    data = make_tar(*entries, file("l/secret", b"overwritten"), file("l/new", b"made"), directory("l/newdir"))
    # Below "/" the same link leads to something inside, which is not there.
    reason = Reason.OUTSIDE if path == "/in" else Reason.NOT_A_DIRECTORY
    assert await find_reason(ground.upload(data, path)) is reason


async def test_a_file_replaces_a_link_and_is_not_written_through_it(ground: Ground) -> None:
    data = make_tar(symlink("l", str(ground.outside / "secret")), file("l", b"a file now"))
    await ground.upload(data)
    assert (ground.root / "in/l").read_bytes() == b"a file now"
    assert not (ground.root / "in/l").is_symlink()


async def test_a_hard_link_is_made_to_what_lies_below_the_target_only(ground: Ground) -> None:
    (ground.root / "other").write_bytes(b"beside the target")
    (ground.root / "in").mkdir()
    (ground.root / "in/out").symlink_to("..")
    for link, reason in (
        ("../other", Reason.OUTSIDE),
        ("out/other", Reason.OUTSIDE),
        (str(ground.outside / "secret"), Reason.NOT_FOUND),
        ("missing", Reason.NOT_FOUND),
    ):
        assert await find_reason(ground.upload(make_tar(hardlink("h", link)))) is reason
    # To a link: the link itself gets another name, and a file then replaces it.
    data = make_tar(
        symlink("l", str(ground.outside / "secret")), hardlink("h", "l"), file("h", b"new"), hardlink("h", "h")
    )
    await ground.upload(data)
    assert (ground.root / "in/h").read_bytes() == b"new"
    assert (ground.root / "other").stat().st_nlink == 1


async def test_a_link_that_stays_below_the_target_is_followed(ground: Ground) -> None:
    (ground.root / "usr/lib").mkdir(parents=True)
    (ground.root / "lib").symlink_to("usr/lib")
    (ground.root / "lib64").symlink_to("/usr/lib")
    await ground.upload(make_tar(directory("lib/"), file("lib/a", b"1"), file("lib64/sub/b", b"2")), "/")
    assert (ground.root / "lib").is_symlink()
    assert sorted(os.listdir(ground.root / "usr/lib")) == ["a", "sub"]
    # Below another target an absolute link leads out.
    (ground.root / "in").mkdir()
    (ground.root / "in/l").symlink_to("/usr/lib")
    assert await find_reason(ground.upload(make_tar(file("l/c", b"3")))) is Reason.OUTSIDE


async def test_what_has_a_name_is_replaced_unless_it_is_a_full_directory(ground: Ground) -> None:
    await ground.upload(
        make_tar(file("a", b"old"), directory("empty"), file("full/x", b"x"), directory("keeps", 0o700))
    )
    await ground.upload(make_tar(directory("a"), file("a/now", b"a directory"), file("empty", b"a file")))
    assert (ground.root / "in/a/now").exists()
    assert (ground.root / "in/empty").read_bytes() == b"a file"
    assert await find_reason(ground.upload(make_tar(file("full", b"")))) is Reason.NOT_EMPTY
    await ground.upload(make_tar(directory("keeps", 0o777), directory("./", 0o777)))
    assert stat.S_IMODE((ground.root / "in/keeps").stat().st_mode) == 0o700
    assert stat.S_IMODE((ground.root / "in").stat().st_mode) == 0o755


async def test_a_fifo_that_has_the_name_is_replaced_and_not_opened(ground: Ground) -> None:
    (ground.root / "in").mkdir()
    os.mkfifo(ground.root / "in/f")
    await ground.upload(make_tar(file("f", b"data")))
    assert (ground.root / "in/f").read_bytes() == b"data"


async def test_an_archive_that_lies_or_is_cut_leaves_no_half_file(ground: Ground) -> None:
    whole = make_tar(file("a", b"x" * 5000))
    before = count_fds()
    for cut in (0, 100, 512, 600, 5000, len(whole.rstrip(b"\0"))):
        assert await find_reason(ground.upload(whole[:cut])) is Reason.BAD_ARCHIVE
        assert not (ground.root / "in/a").exists() or cut > 5500
    lying = tarfile.TarInfo("big")
    lying.size = 10**12
    assert await find_reason(ground.upload(lying.tobuf() + bytes(4096), bytes=10**13)) is Reason.BAD_ARCHIVE
    assert await find_reason(ground.upload(lying.tobuf() + bytes(4096), bytes=10**9)) is Reason.TOO_LARGE
    assert "big" not in os.listdir(ground.root / "in")
    await settle(before)


async def test_entries_are_counted_and_too_many_are_refused(ground: Ground) -> None:
    data = make_tar(*(file(f"{number}", b"") for number in range(50)))
    assert await find_reason(ground.upload(data, entries=49)) is Reason.TOO_MANY
    assert (await ground.upload(data, entries=50)).files == 50


async def test_a_path_of_two_thousand_parts_is_made_and_a_longer_one_refused(ground: Ground) -> None:
    await ground.upload(make_tar(file("d/" * 2000 + "leaf", b"deep")))
    assert (await ground.download("/in"))[1].files == 1
    assert await find_reason(ground.upload(make_tar(file("d/" * 2100 + "leaf", b"")))) is Reason.BAD_ARCHIVE
    assert await find_reason(ground.upload(make_tar(file("x" * 256, b"")))) is Reason.BAD_PATH


@pytest.mark.parametrize("form", ["gnu", "posix", "0.0", "0.1", "1.0"])
async def test_holes_that_gnu_tar_wrote_are_holes_again(ground: Ground, tmp_path: Path, form: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    pieces = [(number * 2 * MIB, b"%d" % number * 4096) for number in range(1, 40)]
    make_sparse(source / "sparse", 100 * MIB, *pieces)
    make_sparse(source / "hole", 10 * MIB)
    words = ["--format=gnu"] if form == "gnu" else ["--format=posix"]
    words += [f"--sparse-version={form}"] if "." in form else []
    made = run_tar("-C", source, "--sparse", *words, "-c", ".")
    assert len(made) < 2 * MIB
    assert (await ground.upload(made)).files == 2
    for name in ("sparse", "hole"):
        assert (ground.root / "in" / name).read_bytes() == (source / name).read_bytes()
        assert (ground.root / "in" / name).stat().st_blocks * 512 < 2 * MIB


async def test_a_terabyte_of_holes_counts_as_a_terabyte(ground: Ground, tmp_path: Path) -> None:
    make_sparse(tmp_path / "huge", 2**40)
    made = run_tar("-C", tmp_path, "-Sc", "huge")
    assert await find_reason(ground.upload(made)) is Reason.TOO_LARGE
    assert (await ground.upload(made, bytes=2**41)).bytes == 2**40


async def test_what_other_programs_pack_arrives_whole(ground: Ground, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(Path(tarfile.__file__).parent / "json", source / "json")
    (source / "line\nbreak").write_bytes(b"x")
    (source / os.fsdecode(b"bad\xff")).write_bytes(b"y")
    for form in ("v7", "oldgnu", "gnu", "ustar", "posix"):
        made = run_tar("-C", source, f"--format={form}", "-c", ".")
        await ground.upload(made, f"/{form}")
        assert is_same(source, ground.root / form)


async def test_a_stream_that_dawdles_is_ended_and_leaves_nothing(ground: Ground) -> None:
    before = count_fds()

    async def receive() -> bytes:
        await asyncio.Event().wait()
        return b""

    call = files.upload(ground.fd, "/in", receive, TransferLimits(time_s=0.2))
    assert await find_reason(call) is Reason.LATE
    await settle(before)


async def test_an_upload_that_is_cancelled_leaves_no_descriptor_and_no_half_file(ground: Ground) -> None:
    before = count_fds()
    data = make_tar(file("a", bytes(50 * MIB)))
    for pause in range(30):
        task = asyncio.create_task(upload(ground.fd, data, "/in"))
        for _ in range(pause * 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await settle(before)
    assert not (ground.root / "in/a").exists() or (ground.root / "in/a").stat().st_size == 50 * MIB
