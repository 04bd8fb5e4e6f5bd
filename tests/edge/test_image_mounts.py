"""Images on one node: mounted once, told of when they are lost, gone when nobody uses them."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest
from image_scenes import Node, make_tree, open_images, pack, read_inside
from sandbox_scenes import is_alive, prepare, shell, shell_text, until

from retinue.sandbox.config import BoxConfig
from retinue.sandbox.image_errors import ImageFailed, ImageRefused, NodeRefused
from retinue.sandbox.link import LinkLost, Refused


@pytest.fixture
def image(tmp_path: Path) -> str:
    return str(pack(make_tree(tmp_path / "tree"), tmp_path / "image.sqfs"))


async def find_daemon(node: Node) -> int:
    await until(lambda: len(node.find_daemons()) == 1)
    return node.find_daemons()[0]


async def test_many_who_ask_at_once_share_one_mount_whatever_they_call_it(tmp_path: Path, image: str) -> None:
    (tmp_path / "other").symlink_to(image)
    async with open_images(tmp_path / "store") as node:
        names = [image, str(tmp_path / "other"), f"{tmp_path}/./image.sqfs"] * 20
        images = await asyncio.gather(*map(node.images.acquire, names))
        assert len(set(images)) == 1
        assert len(node.find_daemons()) == len(node.list_mounts()) == 1
        assert await read_inside(node, images[0], "deep/er/leaf") == "leaf\n" * 1000
        [state] = node.images.describe()
        assert (state.user_count, state.state) == (60, "mounted")


async def test_a_mounted_image_is_given_without_a_look_at_its_file(tmp_path: Path, image: str) -> None:
    async with open_images(tmp_path / "store") as node:
        first = await node.images.acquire(image)
        os.rename(image, f"{image}.away")
        assert await node.images.acquire(image) == first
        assert await read_inside(node, first, "file") == "a file\n"


async def test_sandboxes_run_on_an_image_and_hear_of_its_death_at_once(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with open_images(tmp_path / "store") as node:
        tree = str(prepare(tmp_path_factory.getbasetemp())[1])
        first = await node.images.acquire(tree)
        zygote = await node.space.start_zygote(first.lowers)
        box = await zygote.create(BoxConfig())
        assert await shell_text(box, "cat /image/file; python3 -c 'print(6 * 7)'; echo x > /image/file") == (
            "of the image\n42"
        )
        os.kill(await find_daemon(node), signal.SIGKILL)
        await until(lambda: node.lost)
        assert node.lost == [(first.id, "squashfuse was ended by SIGKILL")]
        with pytest.raises(Refused, match=os.strerror(errno.ENOTCONN)):
            await shell(box, "cat /image/deep/leaf")
        zygote.close()
        second = await node.images.acquire(tree)
        assert (second.id, second == first) == (first.id, False)
        again = await node.space.start_zygote(second.lowers)
        assert await shell_text(await again.create(BoxConfig()), "cat /image/file") == "of the image"
        node.images.release(first)
        await until(lambda: node.list_mounts() == [str(second.path)])
        assert [state.user_count for state in node.images.describe()] == [1]


async def test_a_squashfuse_that_is_silent_is_killed_and_its_image_lost(tmp_path: Path, image: str) -> None:
    async with open_images(tmp_path / "store", hang_s=1) as node:
        first = await node.images.acquire(image)
        daemon = await find_daemon(node)
        os.kill(daemon, signal.SIGSTOP)
        await until(lambda: node.lost, 30)
        assert node.lost == [(first.id, "squashfuse gave no answer for 1 s and was killed")]
        assert not is_alive(daemon)
        second = await node.images.acquire(image)
        assert await read_inside(node, second, "file") == "a file\n"


async def test_an_image_that_nobody_uses_is_unmounted_and_mounted_again(tmp_path: Path, image: str) -> None:
    async with open_images(tmp_path / "store", idle_s=0.05) as node:
        first = await node.images.acquire(image)
        second = await node.images.acquire(image)
        node.images.release(second)
        assert node.list_mounts() == [str(first.path)]
        node.images.release(first)
        await until(lambda: node.idle)
        assert node.idle == [first.id]
        await until(lambda: not node.find_daemons() and not node.list_mounts())
        third = await node.images.acquire(image)
        assert await read_inside(node, third, "file") == "a file\n"
        assert node.lost == []


async def test_an_image_that_is_used_again_in_time_stays(tmp_path: Path, image: str) -> None:
    other = pack(make_tree(tmp_path / "2"), tmp_path / "other.sqfs")
    async with open_images(tmp_path / "store", idle_s=0.5) as node:
        first, second = await node.images.acquire(image), await node.images.acquire(str(other))
        for _ in range(1000):
            node.images.release(first)
            assert await node.images.acquire(image) == first
        node.images.release(second)
        node.images.release(second)  # Once too often changes nothing.
        await until(lambda: node.idle)  # The other one's time is over, and so would be that of the first.
        assert node.idle == [second.id]
        assert [(state.id, state.user_count) for state in node.images.describe()] == [(first.id, 1)]
        assert await read_inside(node, first, "file") == "a file\n"
        node.images.release(first)
        assert [state.state for state in node.images.describe()] == ["idle"]


async def test_a_caller_who_goes_away_takes_nothing_from_the_others(tmp_path: Path, image: str) -> None:
    async with open_images(tmp_path / "store") as node:
        asked = [asyncio.create_task(node.images.acquire(image)) for _ in range(3)]
        await asyncio.sleep(0)
        asked[0].cancel()
        assert (await asked[1]) == (await asked[2])
        assert [state.user_count for state in node.images.describe()] == [2]


async def test_after_the_end_of_the_space_every_image_is_lost_and_none_is_given(tmp_path: Path, image: str) -> None:
    async with open_images(tmp_path / "store") as node:
        first = await node.images.acquire(image)
        os.kill(node.space.pid, signal.SIGKILL)
        await until(lambda: node.lost)
        assert node.lost == [(first.id, "squashfuse ended with its node space")]
        with pytest.raises((LinkLost, ImageFailed)):
            await node.images.acquire(image)


async def test_what_is_closed_leaves_no_process_no_mount_and_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    async with open_images(tmp_path / "store") as node:
        paths = [pack(make_tree(tmp_path / f"{n}", f"{n}"), tmp_path / f"{n}.sqfs") for n in range(5)]
        images = await asyncio.gather(*(node.images.acquire(str(path)) for path in paths))
        for n, image in enumerate(images):
            assert await read_inside(node, image, "file") == f"{n}"
        asked = asyncio.create_task(node.images.acquire(str(make_tree(tmp_path / "unpacked"))))
        await asyncio.sleep(0)
        await node.images.close()
        assert (node.find_daemons(), node.list_mounts(), os.listdir(node.base)) == ([], [], [])
        with pytest.raises(ImageFailed, match="stopping"):
            await asked
        with pytest.raises(ImageFailed, match="stopping"):
            await node.images.acquire(str(paths[0]))
        assert node.lost == []
    assert set(os.listdir("/proc/self/fd")) == before


async def test_a_node_without_squashfuse_is_refused_with_the_package_to_install(tmp_path: Path, image: str) -> None:
    async with open_images(tmp_path / "store", squashfuse="squashfuse-that-is-not-here") as node:
        with pytest.raises(NodeRefused, match="install the package"):
            await node.images.acquire(image)


async def test_a_program_that_is_no_squashfuse_is_not_waited_for(tmp_path: Path, image: str) -> None:
    async with open_images(tmp_path / "store", squashfuse="/bin/false") as node:
        with pytest.raises(ImageRefused, match="exit code 1"):
            await node.images.acquire(image)
        assert (node.list_mounts(), node.lost) == ([], [])
