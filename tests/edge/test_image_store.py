"""The shared store: a directory is packed once for all nodes, whole or not at all, whoever dies meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from image_scenes import find_program, list_store, make_tree, open_images, pack, read_inside, read_words, watch_packing
from sandbox_scenes import is_alive, list_descendants, until

from retinue.sandbox import store as store_module
from retinue.sandbox.image_errors import ImageFailed, NodeRefused
from retinue.sandbox.store_lock import StoreLock

PACKER = """
import asyncio, sys
from pathlib import Path
from retinue.sandbox.images import Images, ImageSettings
from retinue.sandbox.space import NodeSpace

async def main(folder, program, store, tree):
    base = folder / "base"
    base.mkdir(mode=0o700, parents=True)
    space = await NodeSpace.start(base, program)
    images = await Images.open(space, ImageSettings(base, store, folder / "logs"), print)
    try:
        print(await images.acquire(str(tree)), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    await images.close()
    await space.close()

asyncio.run(main(*map(Path, sys.argv[1:])))
"""


def start_packer(tmp_path: Path, store: Path, tree: Path, *before: str) -> "subprocess.Popen[bytes]":
    """Another node, in a process of its own."""
    words = [*before, sys.executable, "-c", PACKER, str(tmp_path / "far"), str(find_program(tmp_path.parent))]
    return subprocess.Popen([*words, str(store), str(tree)], stdout=subprocess.PIPE)


async def test_nodes_that_pack_the_same_directory_at_once_pack_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = watch_packing(monkeypatch, tmp_path / "bin")
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    async with open_images(store) as one, open_images(store) as two, open_images(store) as three:
        images = await asyncio.gather(*(node.images.acquire(str(tree)) for node in (one, two, three) * 3))
        assert len({image.id for image in images}) == 1
        assert await read_inside(three, images[2], "deep/er/leaf") == "leaf\n" * 1000
    assert count() == 1
    [name] = list_store(store)
    assert (store / name[:2] / name[2:4] / name).is_file()


async def test_a_directory_is_packed_again_only_when_something_in_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = watch_packing(monkeypatch, tmp_path / "bin")
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    facts = os.stat(tree / "file")

    async def read_anew() -> str:
        async with open_images(store) as node:
            return await read_inside(node, await node.images.acquire(str(tree)), "file")

    assert [await read_anew(), await read_anew(), count()] == ["a file\n", "a file\n", 1]
    (tree / "file").write_text("A FILE\n")
    os.utime(tree / "file", ns=(facts.st_atime_ns, facts.st_mtime_ns))  # Same size and time stamp.
    assert [await read_anew(), count()] == ["A FILE\n", 2]
    os.rename(tree, tree := tmp_path / "moved")
    assert [await read_anew(), count()] == ["A FILE\n", 2]


async def test_a_packer_that_was_killed_leaves_nothing_usable_and_is_taken_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    with monkeypatch.context() as far:
        count = watch_packing(far, tmp_path / "bin", after="sleep 600")
        with start_packer(tmp_path, store, tree) as packer:
            try:
                await until(lambda: [name for name in list_store(store) if name.endswith(".part")] and count())
                below = list_descendants(packer.pid)
            finally:
                os.kill(packer.pid, signal.SIGKILL)
    await until(lambda: not any(map(is_alive, below)))
    assert sorted(name.rpartition(".")[2] for name in list_store(store)) == ["lock", "part"]
    async with open_images(store) as node:
        async with asyncio.timeout(30):  # Far below the minute after which an unknown owner is dead.
            image = await node.images.acquire(str(tree))
        assert await read_inside(node, image, "file") == "a file\n"
    [name] = list_store(store)
    assert name.endswith(".sqfs")


async def test_who_waits_for_another_packer_packs_when_that_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    count = watch_packing(monkeypatch, tmp_path / "bin", before=f"[ -e {go} ] && cat {go} && rm {go} && exit 9")
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    async with open_images(store) as one, open_images(store) as two:
        first = asyncio.create_task(one.images.acquire(str(tree)))
        await until(lambda: count() == 1)
        second = asyncio.create_task(two.images.acquire(str(tree)))
        await until(lambda: any("waiting" in state.state for state in two.images.describe()))
        assert count() == 1
        go.write_text("")
        with pytest.raises(ImageFailed, match="ended with 9"):
            await first
        assert await read_inside(two, await second, "file") == "a file\n"
    assert count() == 2
    assert len(list_store(store)) == 1


async def test_closing_while_packing_ends_mksquashfs_and_gives_the_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = watch_packing(monkeypatch, tmp_path / "bin", before="exec sleep 600")
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    async with open_images(store) as node:
        asked = asyncio.create_task(node.images.acquire(str(tree)))
        await until(lambda: count() == 1)
        await node.images.close()
        with pytest.raises(ImageFailed, match="stopping"):
            await asked
        assert list_store(store) == []
        names = {name for pid in list_descendants(node.space.pid) for name in read_words(pid)[:1]}
        assert names <= {"retinue-sandbox"}, names


async def test_who_gets_the_lock_when_all_is_done_does_not_pack_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = watch_packing(monkeypatch, tmp_path / "bin")
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    packed = pack(make_tree(tmp_path / "same", "by another node\n"), tmp_path / "packed")
    runs, take = count(), store_module._try_take

    def take_late(lock: StoreLock, final: Path) -> str | None:
        final.parent.mkdir(parents=True)
        os.rename(packed, final)  # The other node finished between our look and our lock.
        return take(lock, final)

    monkeypatch.setattr(store_module, "_try_take", take_late)
    async with open_images(store) as node:
        assert await read_inside(node, await node.images.acquire(str(tree)), "file") == "by another node\n"
    assert count() == runs


async def test_a_directory_that_changes_while_it_is_packed_gives_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    watch_packing(monkeypatch, tmp_path / "bin", before=f"echo changed > {tree}/file")
    async with open_images(store) as node:
        with pytest.raises(ImageFailed, match="changed"):
            await node.images.acquire(str(tree))
        assert list_store(store) == []
        assert node.images.describe() == []


async def test_a_full_store_is_ours_to_mend_and_keeps_nothing_half_written(tmp_path: Path) -> None:
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    (tree / "noise").write_bytes(os.urandom(1 << 20))
    store.mkdir()
    mount = f'mount -t tmpfs -o size=400k store {store} && "$@"; find {store} -type f'
    with start_packer(tmp_path, store, tree, "unshare", "-Urm", "sh", "-c", mount, "sh") as packer:
        said = packer.communicate(timeout=60)[0].decode()
    assert said.startswith("ImageFailed cannot pack")
    assert "is full" in said
    assert said.count("\n") == 1, said


async def test_a_store_that_cannot_be_written_still_gives_what_is_in_it(tmp_path: Path) -> None:
    tree, store = make_tree(tmp_path / "tree"), tmp_path / "store"
    async with open_images(store) as node:
        await node.images.acquire(str(tree))
    folders = [store, *(path for path in store.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    async with open_images(store) as node:
        assert await read_inside(node, await node.images.acquire(str(tree)), "file") == "a file\n"
        if os.geteuid() != 0:
            with pytest.raises(NodeRefused, match="a store that it can write"):
                await node.images.acquire(str(make_tree(tmp_path / "another")))
    for folder in folders:
        folder.chmod(0o755)


async def test_the_packed_file_has_no_more_readers_than_the_directory(tmp_path: Path) -> None:
    store = tmp_path / "store"
    modes = {}
    async with open_images(store) as node:
        for mode in (0o700, 0o755):
            tree = make_tree(tmp_path / f"{mode:o}")
            tree.chmod(mode)
            before = set(store.rglob("*.sqfs"))
            image = await node.images.acquire(str(tree))
            [packed] = set(store.rglob("*.sqfs")) - before
            modes[mode] = packed.stat().st_mode & 0o777
            base = await node.space.open_base()
            inside = os.stat(image.path.relative_to(node.base), dir_fd=base)
            os.close(base)
            assert inside.st_mode & 0o777 == 0o755
    umask = os.umask(0o022)
    os.umask(umask)
    assert modes == {0o700: 0o600, 0o755: 0o644 & ~umask}


async def test_progress_is_told_while_a_directory_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    watch_packing(monkeypatch, tmp_path / "bin", after=f"cat {go}")
    tree = make_tree(tmp_path / "tree")
    async with open_images(tmp_path / "store") as node:
        asked = asyncio.create_task(node.images.acquire(str(tree)))
        await until(lambda: any("blocks of" in state.state for state in node.images.describe()))
        go.write_text("")
        await asked


async def test_storage_that_does_not_answer_is_waited_for_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, go = tmp_path / "silent", tmp_path / "go"
    os.mkfifo(go)

    def open_silent(name: str, path: Path) -> Path:
        go.read_bytes()  # Blocks until somebody writes, as a hung file system would.
        return path

    monkeypatch.setattr(store_module, "_open_file", open_silent)
    async with open_images(tmp_path / "store", storage_s=0.1) as node:
        with pytest.raises(ImageFailed, match=r"no answer in 0\.1 s"):
            await node.images.acquire(str(silent))
        go.write_bytes(b"")
