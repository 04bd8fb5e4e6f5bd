"""Images that are damaged or made to harm: refused or read as they are, and nobody else notices."""

import asyncio
import contextlib
import os
import random
import shutil
import socket
import struct
from pathlib import Path

import pytest
from image_scenes import Node, list_store, make_tree, open_images, open_inside, pack, read_inside, watch_packing

from retinue.errors import RetinueError
from retinue.sandbox.aside import run_aside
from retinue.sandbox.image_errors import ImageFailed, ImageRefused, Reason
from support.sif_file import DATA_OFFSET, Part, build_sif


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return pack(make_tree(tmp_path / "tree"), tmp_path / "good.sqfs")


async def refuse(node: Node, name: str | Path) -> Reason:
    with pytest.raises(ImageRefused) as refused:
        await node.images.acquire(str(name))
    assert "; " in str(refused.value) or "denied" in str(refused.value)
    return refused.value.reason


async def test_the_squashfs_in_a_sif_file_is_mounted_and_its_name_may_be_odd(tmp_path: Path, good: Path) -> None:
    odd = tmp_path / "a,b=c \n \udcff'.sif"
    odd.write_bytes(build_sif(Part(b"deffile", kind=0x4001), Part(good.read_bytes() + bytes(500), arch=b"00")))
    async with open_images(tmp_path / "store") as node:
        image = await node.images.acquire(str(odd))
        assert await read_inside(node, image, "file") == "a file\n"


async def test_what_is_no_image_is_refused_by_its_kind(tmp_path: Path, good: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "closed.sqfs").write_bytes(good.read_bytes())
    (tmp_path / "closed.sqfs").chmod(0)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(tmp_path / "sock"))
    async with open_images(tmp_path / "store") as node:
        for name in ("fifo", "text", "empty", "sock", "/dev/null", "/dev/tty"):
            assert await refuse(node, tmp_path / name) == Reason.NOT_AN_IMAGE, name
        for name in ("nothing", "loop", "text/below", "x" * 300):
            assert await refuse(node, tmp_path / name) == Reason.NOT_FOUND, name
        for name in ("", "../good.sqfs", "a/../../good.sqfs", "docker://python:3.12", "a\0b", "0" * 64):
            assert await refuse(node, name) == Reason.NOT_FOUND, name
        if os.geteuid() != 0:
            assert await refuse(node, tmp_path / "closed.sqfs") == Reason.UNREADABLE
        assert node.find_daemons() == []
    sock.close()


async def test_names_relative_to_the_store_and_digests_are_found_there(tmp_path: Path, good: Path) -> None:
    digest = "ab" + "cd" * 31
    for place in ("team/py.sqfs", f"ab/cd/{digest}.sqfs"):
        (tmp_path / "store" / place).parent.mkdir(parents=True)
        shutil.copy(good, tmp_path / "store" / place)
    async with open_images(tmp_path / "store") as node:
        for name in ("team/py.sqfs", digest):
            assert await read_inside(node, await node.images.acquire(name), "file") == "a file\n"


async def test_a_compression_that_this_squashfuse_lacks_is_said_so(tmp_path: Path, good: Path) -> None:
    data = bytearray(good.read_bytes())
    data[20:22] = struct.pack("<H", 2)  # lzma, which squashfuse never had
    (tmp_path / "lzma.sqfs").write_bytes(data)
    async with open_images(tmp_path / "store") as node:
        assert await refuse(node, tmp_path / "lzma.sqfs") == Reason.UNSUPPORTED


async def test_an_image_that_was_cut_short_is_damaged_wherever_it_was_cut(tmp_path: Path, good: Path) -> None:
    whole = build_sif(Part(good.read_bytes()))
    async with open_images(tmp_path / "store") as node:
        for size in (100, 4097, DATA_OFFSET - 1, DATA_OFFSET + 50, DATA_OFFSET + 200, len(whole) - 5000):
            (tmp_path / f"{size}.sif").write_bytes(whole[:size])
            assert await refuse(node, tmp_path / f"{size}.sif") == Reason.DAMAGED, size


@pytest.mark.parametrize("table", ["inodes", "directories"])
async def test_a_root_directory_that_cannot_be_read_is_damaged(tmp_path: Path, good: Path, table: str) -> None:
    data = bytearray(good.read_bytes())
    inodes, directories = struct.unpack_from("<QQ", data, 64)
    start = inodes if table == "inodes" else directories
    data[start + 2 : start + 60] = random.Random(3).randbytes(58)
    (tmp_path / "bad.sqfs").write_bytes(data)
    async with open_images(tmp_path / "store") as node:
        assert await refuse(node, tmp_path / "bad.sqfs") == Reason.DAMAGED
        assert (node.find_daemons(), node.list_mounts(), os.listdir(node.base)) == ([], [], [])


def read_all(root: int) -> int:
    """Read whatever can be read below a directory, following nothing."""
    count = 0
    for _, _, files, folder in os.fwalk(".", dir_fd=root, onerror=lambda _: None):
        for name in files[:100]:
            with contextlib.suppress(OSError):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
                count += len(os.read(fd, 1 << 20))
                os.close(fd)
        if count > 1 << 24:
            break
    return count


async def test_whatever_bytes_are_damaged_nothing_hangs_and_the_neighbour_reads_on(tmp_path: Path, good: Path) -> None:
    dice = random.Random(11)
    whole = good.read_bytes()
    [tables] = struct.unpack_from("<Q", whole, 64)
    outcomes: dict[str, int] = {}
    async with open_images(tmp_path / "store", idle_s=0) as node:
        neighbour = await node.images.acquire(str(good))
        for number in range(60):
            data = bytearray(whole)
            for _ in range(dice.choice([1, 1, 3, 20])):
                data[
                    dice.choice([dice.randrange(96), dice.randrange(96, len(data)), dice.randrange(tables, len(data))])
                ] = dice.randrange(256)
            (path := tmp_path / f"{number}.sqfs").write_bytes(data)
            try:
                image = await node.images.acquire(str(path))
            except (ImageRefused, ImageFailed) as error:
                outcomes[type(error).__name__] = outcomes.get(type(error).__name__, 0) + 1
                continue
            outcomes["mounted"] = outcomes.get("mounted", 0) + 1
            with contextlib.suppress(OSError):
                root = await open_inside(node, image)
                await run_aside(lambda root=root: read_all(root), 60)  # type: ignore[misc]
                os.close(root)
            node.images.release(image)
        assert outcomes["mounted"] > 5
        assert outcomes["ImageRefused"] > 5
        assert await read_inside(node, neighbour, "file") == "a file\n"
        assert neighbour.id not in [image_id for image_id, _ in node.lost]


async def test_a_directory_that_holds_the_store_is_not_packed_into_it(tmp_path: Path) -> None:
    async with open_images(tmp_path / "store") as node:
        assert await refuse(node, tmp_path) == Reason.UNSUPPORTED
        assert await refuse(node, "/") == Reason.UNSUPPORTED
    assert not (tmp_path / "store").exists()


async def test_a_directory_that_cannot_be_listed_is_refused_not_packed_without(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "deep").chmod(0)
    async with open_images(tmp_path / "store") as node:
        assert await refuse(node, tree) == Reason.UNREADABLE
    assert not (tmp_path / "store").exists()
    (tree / "deep").chmod(0o755)


async def test_a_file_that_mksquashfs_leaves_empty_is_refused_though_it_says_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What 4.5.1 prints of another user's closed file, without -exit-on-error; older ones have no such option.
    watch_packing(monkeypatch, tmp_path / "bin", after="echo 'Failed to read file s/x, creating empty file' >&2")
    async with open_images(tmp_path / "store") as node:
        assert await refuse(node, make_tree(tmp_path / "tree")) == Reason.UNREADABLE
    assert list_store(tmp_path / "store") == []


async def test_links_in_odd_places_are_packed_as_links(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    for name in ("proc", "dev", "tmp", "etc"):
        (tree / name).symlink_to("/root")
    (tmp_path / "by-link").symlink_to(tree)
    async with open_images(tmp_path / "store") as node:
        image = await node.images.acquire(str(tmp_path / "by-link"))
        root = await open_inside(node, image)
        assert {os.readlink(name, dir_fd=root) for name in ("proc", "dev", "tmp", "etc")} == {"/root"}
        assert os.readlink("link", dir_fd=root) == "/etc/passwd"
        assert os.stat("closed", dir_fd=root).st_size == len("of its owner\n")
        os.close(root)


async def test_every_refusal_is_one_of_ours(tmp_path: Path) -> None:
    async with open_images(tmp_path / "store") as node:
        asked = [node.images.acquire(str(tmp_path / f"{number}")) for number in range(100)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(error, RetinueError) for error in found)
        assert node.images.describe() == []
