"""While files are used from outside, all inside is swapped under our hands: nothing leaves or enters the root."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_scenes import (
    SECRET,
    Ground,
    directory,
    download,
    file,
    find_reason,
    list_refusals,
    make_tar,
    read_tar,
    upload,
)
from sandbox_scenes import Scene, open_scene, prepare, python, shell, shell_text

from retinue.sandbox import files
from retinue.sandbox.box import Box
from retinue.sandbox.file_errors import FileRefused, Reason
from retinue.sandbox.file_inlet import AHEAD_BYTES
from retinue.sandbox.file_lanes import Stop
from retinue.sandbox.file_remove import remove_path

ROUNDS = 1000
SWAPPER = Path(__file__).with_name("file_swapper.py")


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    (made.root / "yard").mkdir()
    yield made
    made.close()


@contextmanager
def attack(ground: Ground, target: str) -> Iterator[Callable[[], int]]:
    """Swap below /yard, in a process of its own; gives how often."""
    count_file = ground.root.parent / "count"
    count_file.write_bytes(bytes(8))

    def count() -> int:
        return int.from_bytes(count_file.read_bytes(), "little")

    words = [sys.executable, "-S", str(SWAPPER), str(ground.root / "yard"), target, str(count_file)]
    with subprocess.Popen(words) as process:
        try:
            while not count():
                assert process.poll() is None
            yield count
            assert process.poll() is None
        finally:
            process.kill()


async def note(outcomes: list[Reason | None], call: Awaitable[object]) -> None:
    """Keep why a call was refused; None: it was not."""
    outcomes += await list_refusals(call) or [None]


@pytest.fixture(params=["absolute", "climbing"])
def target(request: pytest.FixtureRequest, ground: Ground) -> str:
    climb = os.path.relpath(ground.outside, ground.root / "yard")
    return climb if request.param == "climbing" else str(ground.outside)


async def test_a_thousand_uploads_into_directories_that_turn_into_links(ground: Ground, target: str) -> None:
    data = make_tar(
        directory("d"),
        directory("d/deep"),
        file("d/deep/secret", b"uploaded"),
        file("d/new", b"uploaded"),
        file("f", b"uploaded"),
        file("d/deep/more/and/more", b"uploaded"),
    )
    outcomes: list[Reason | None] = []
    with attack(ground, target) as count_swaps:
        for _ in range(ROUNDS):
            await note(outcomes, upload(ground.fd, data, "/yard"))
        assert count_swaps() > ROUNDS
    assert ground.is_outside_untouched()
    # Both happened: the way was a link, and it was not.
    assert {None, Reason.OUTSIDE} <= set(outcomes)


async def test_a_thousand_downloads_and_reads_of_what_turns_into_links(ground: Ground, target: str) -> None:
    found: list[bytes] = []
    outcomes: list[Reason | None] = []
    with attack(ground, target) as count_swaps:
        for _ in range(ROUNDS):
            data, _ = await download(ground.fd, "/yard")
            found += [data]
            for path in ("/yard/f", "/yard/d/deep/secret"):
                await note(outcomes, keep(found, files.read(ground.fd, path)))
        assert count_swaps() > ROUNDS
    assert b"inside" in found
    assert {None, Reason.NOT_FOUND} <= set(outcomes)
    assert not [content for content in found if SECRET in content]
    assert ground.is_outside_untouched()


async def keep(found: list[bytes], call: Awaitable[bytes]) -> None:
    found.append(await call)


async def test_a_thousand_writes_and_removals_where_links_appear(ground: Ground, target: str) -> None:
    outcomes: list[Reason | None] = []
    with attack(ground, target) as count_swaps:
        for _ in range(ROUNDS // 2):
            await note(outcomes, files.write(ground.fd, "/yard/d/deep/secret", b"written"))
            await note(outcomes, files.write(ground.fd, "/yard/f", b"written", append=True))
            await note(outcomes, files.make_directory(ground.fd, "/yard/d/deep/made", parents=True))
            await note(outcomes, files.remove(ground.fd, "/yard/d/deep", recursive=True))
        assert count_swaps() > ROUNDS
    assert ground.is_outside_untouched()
    assert {None, Reason.NOT_FOUND} <= set(outcomes)


def become_link(path: Path, target: Path) -> None:
    path.rename(path.with_name(path.name + "-was"))
    path.symlink_to(target)


def test_a_directory_that_turns_into_a_link_after_it_was_listed_is_not_emptied(ground: Ground) -> None:
    for name in ("one", "two"):
        (ground.root / "t" / name).mkdir(parents=True)

    class SwapsAtSecondLook(Stop):
        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks == 2:
                become_link(ground.root / "t" / "one", ground.outside / "deep")
                become_link(ground.root / "t" / "two", ground.outside / "deep")

    with pytest.raises(FileRefused):
        remove_path(ground.fd, b"/t", True, SwapsAtSecondLook())
    assert ground.is_outside_untouched()


async def test_a_directory_that_turns_into_a_link_gets_no_mode_and_time_at_the_end(ground: Ground) -> None:
    data = make_tar(directory("d", 0o700), directory("d/deep", 0o777), file("large", bytes(2 * AHEAD_BYTES)))
    at = 0

    async def receive() -> bytes:
        nonlocal at
        if at and not (ground.root / "in" / "d").is_symlink():
            async with asyncio.timeout(20):
                while not (ground.root / "in" / "d" / "deep").exists():  # noqa: ASYNC110  made in a thread
                    await asyncio.sleep(0.01)
            become_link(ground.root / "in" / "d", ground.outside)
        at += AHEAD_BYTES
        return data[at - AHEAD_BYTES : at]

    await files.upload(ground.fd, "/in", receive)
    assert (ground.root / "in" / "d").is_symlink()
    assert ground.is_outside_untouched()


# --- from inside a sandbox ------------------------------------------------------------------


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene, None]:
    program, image = prepare(tmp_path_factory.getbasetemp())
    async with open_scene(program, image) as opened:
        yield opened


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


async def test_a_sandbox_that_swaps_everything_gets_nothing_out_and_breaks_nothing(scene: Scene) -> None:
    box = await scene.create()
    data = make_tar(directory("d/deep"), file("d/deep/secret", b"up"), file("f", b"up"), file("d/new", b"up"))
    outcomes: list[Reason | None] = []
    with closing(await box.open_root()) as fd:
        await files.make_directory(fd, "/yard")
        await files.write(fd, "/count", bytes(8))
        await files.write(fd, "/swapper.py", SWAPPER.read_bytes())
        # Its links lead to what the host's side of the sandbox would see there: itself.
        running = box.start(["python3", "-S", "/swapper.py", "/yard", "/proc/self/root", "/count"])
        async with asyncio.timeout(30):
            while not any(await files.read(fd, "/count")):  # noqa: ASYNC110  its count is a file
                await asyncio.sleep(0.01)
        for _ in range(ROUNDS):
            await note(outcomes, upload(fd, data, "/yard"))
            assert {member.size for member in read_tar((await download(fd, "/yard"))[0]).values()} <= {0, 2, 6}
            await note(outcomes, files.read(fd, "/yard/d/etc/passwd"))
        await running.kill()
        assert int.from_bytes(await files.read(fd, "/count"), "little") > ROUNDS
    assert {None, Reason.OUTSIDE} <= set(outcomes)
    assert await shell_text(box, "echo works") == "works"


async def test_a_sandboxs_files_are_used_as_it_sees_them(scene: Scene) -> None:
    box = await scene.create()
    with closing(await box.open_root()) as fd:
        assert await files.read(fd, "/image/file") == b"of the image\n"
        await files.write(fd, "/image/file", b"changed\n")
        await files.write(fd, "/bin/tool", b"#!/bin/sh\necho ran $1\n", mode=0o755)
        assert await shell_text(box, "tool it; cat /image/file") == "ran it\nchanged"
        await shell_text(box, "ln -s /image/deep /l; mkfifo /tmp/f; cp /bin/true /tmp/t; ln /tmp/t /tmp/u")
        assert [entry.name for entry in await files.list(fd, "/l")] == ["leaf"]
        assert await files.remove(fd, "/image", recursive=True) == 4
        assert (await shell(box, "ls /image")).ended.exit_code != 0
        for path in ("/proc/1/environ", "/proc/self/status", "/dev/null", "/dev/pts", "/sys"):
            assert await find_reason(files.read(fd, path)) in (Reason.OUTSIDE, Reason.NOT_FOUND)
        data, result = await download(fd, "/tmp")
        assert (result.files, result.links, result.skipped_names) == (1, 1, ["f"])
        assert (await upload(fd, data, "/copy")).links == 1
        assert await shell_text(box, "/copy/t && /copy/u && stat -c %h /copy/t") == "2"


async def test_dev_shm_is_the_sandboxs_own_too(scene: Scene) -> None:
    for limits in ({}, {"shm_bytes": 2**20}):
        box = await scene.create(**limits)
        with closing(await box.open_root()) as fd:
            await files.write(fd, "/dev/shm/a", b"shared")
            assert await python(box, "print(open('/dev/shm/a').read())") == "shared"
            await upload(fd, make_tar(file("d/b", b"c")), "/dev/shm/up")
            assert await files.read(fd, "/dev/shm/up/d/b") == b"c"
            assert (await download(fd, "/dev/shm"))[1].files == 2
            assert await files.remove(fd, "/dev/shm/up", recursive=True) == 3
            assert await find_reason(files.remove(fd, "/dev/shm", recursive=True)) is not Reason.NOT_FOUND
            assert await find_reason(files.write(fd, "/dev/other", b"")) is Reason.OUTSIDE


async def fill_disk(box: Box, fd: int) -> None:
    assert await find_reason(files.write(fd, "/full", bytes(8 * 2**20))) is Reason.DISK_FULL
    assert await find_reason(upload(fd, make_tar(file("a", bytes(8 * 2**20))), "/")) is Reason.DISK_FULL
    assert await find_reason(files.stat(fd, "/a")) is Reason.NOT_FOUND


async def test_a_full_disk_is_said_to_be_full_and_no_half_file_is_left(scene: Scene) -> None:
    box = await scene.create(disk_bytes=4 * 2**20, inode_count=300)
    neighbour = await scene.create()
    with closing(await box.open_root()) as fd:
        await fill_disk(box, fd)
        await files.remove(fd, "/full")
        many = make_tar(*(file(f"{number}", b"") for number in range(400)))
        assert await find_reason(upload(fd, many, "/many")) is Reason.DISK_FULL
        await files.remove(fd, "/many", recursive=True)
        assert await shell_text(box, "echo works > /tmp/x && cat /tmp/x") == "works"
    assert await shell_text(neighbour, "echo undisturbed") == "undisturbed"


async def test_files_of_a_sandbox_that_is_gone_are_gone_too(scene: Scene) -> None:
    box = await scene.create()
    with closing(await box.open_root()) as fd:
        await files.write(fd, "/a", b"x")
        box.close()
        await box.gone
        reasons = await list_refusals(files.read(fd, "/proc/1/environ"))
        assert reasons
