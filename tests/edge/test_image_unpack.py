"""Without FUSE: images unpacked to the node's disk, when the service is told so."""

import contextlib
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from image_scenes import make_tree, open_images, pack
from sandbox_scenes import prepare, shell_text, until

from retinue.sandbox.config import BoxConfig
from retinue.sandbox.image_errors import ImageFailed, ImageRefused, NodeRefused, Reason
from retinue.sandbox.images import ImageSettings, check_node
from retinue.sandbox.unpack import check_end
from support.sif_file import Part, build_sif

CHECK = "from retinue.sandbox.mounts import check_fuse; check_fuse()"


async def test_a_sandbox_runs_on_an_unpacked_image_which_is_removed_when_idle(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scratch = tmp_path / "scratch"
    async with open_images(tmp_path / "store", unpack_to=scratch, idle_s=0.05) as node:
        image = await node.images.acquire(str(prepare(tmp_path_factory.getbasetemp())[1]))
        zygote = await node.space.start_zygote(image.lowers)
        box = await zygote.create(BoxConfig())
        assert await shell_text(box, "cat /image/file; rm -r /image; ls -d /image || echo gone") != ""
        assert node.find_daemons() == []
        assert (image.path / "image" / "file").read_text() == "of the image\n"
        zygote.close()
        node.images.release(image)
        await until(lambda: not os.listdir(scratch))
        assert node.idle == [image.id]


async def test_modes_and_links_are_kept_and_what_nobody_may_make_is_left_out(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "deep" / "er").chmod(0o555)
    pseudo = ["-p", "null c 666 0 0 1 3", "-p", "own d 750 33 33", "-p", "own/file f 640 33 33 echo hi"]
    whole = pack(tree, tmp_path / "image.sqfs").read_bytes()
    pack(tree, tmp_path / "odd.sqfs", *pseudo)
    (tmp_path / "image.sif").write_bytes(build_sif(Part(whole, arch=b"00")))
    async with open_images(tmp_path / "store", unpack_to=tmp_path / "scratch") as node:
        path = (await node.images.acquire(str(tmp_path / "image.sif"))).path
        assert (path / "deep" / "er").stat().st_mode & 0o777 == 0o555
        assert (path / "closed").stat().st_mode & 0o777 == 0
        assert os.readlink(path / "deep" / "up") == "../.."
        path = (await node.images.acquire(str(tmp_path / "odd.sqfs"))).path
        assert (path / "own").stat().st_mode & 0o777 == 0o750
        assert (path / "own" / "file").read_text() == "hi\n"
        assert not (path / "null").exists() or os.geteuid() == 0
    assert os.listdir(tmp_path / "scratch") == []
    (tree / "deep" / "er").chmod(0o755)


@pytest.mark.parametrize("where", ["tables", "content"])
async def test_a_damaged_image_is_refused_and_leaves_nothing(tmp_path: Path, where: str) -> None:
    tree = make_tree(tmp_path / "tree")
    (tree / "numbers").write_text("".join(f"{number}\n" for number in range(200_000)))
    data = bytearray(pack(tree, tmp_path / "image.sqfs", "-comp", "gzip").read_bytes())
    [tables] = struct.unpack_from("<Q", data, 64)
    start = tables + 2 if where == "tables" else tables // 2
    data[start : start + 60] = random.Random(3).randbytes(60)
    (tmp_path / "bad.sqfs").write_bytes(data)
    async with open_images(tmp_path / "store", unpack_to=tmp_path / "scratch") as node:
        with pytest.raises(ImageRefused) as refused:
            await node.images.acquire(str(tmp_path / "bad.sqfs"))
        assert refused.value.reason == Reason.DAMAGED
        assert os.listdir(tmp_path / "scratch") == []


@pytest.mark.parametrize(
    ("hide", "remedy"), [("mount -t tmpfs none /dev", "kernel module"), ("mount --bind /etc/shadow /dev/fuse", "chmod")]
)
def test_a_node_without_dev_fuse_is_refused_with_the_remedy(hide: str, remedy: str) -> None:
    words = ["unshare", "-Urm", "sh", "-c", f'{hide} && exec "$@"', "sh", sys.executable, "-c", CHECK]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "NodeRefused: cannot open /dev/fuse" in ended.stderr
    assert remedy in ended.stderr


def test_the_check_of_a_node_asks_for_what_the_settings_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_node(ImageSettings(tmp_path, tmp_path, tmp_path))
    check_node(ImageSettings(tmp_path, tmp_path, tmp_path, unpack_to=tmp_path))
    with pytest.raises(NodeRefused, match="cannot find squashfuse-of-nobody"):
        check_node(ImageSettings(tmp_path, tmp_path, tmp_path, squashfuse="squashfuse-of-nobody"))


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (0, "anything", None),
        (2, "create_inode: could not create character device x, because you're not superuser!\n\n", None),
        (2, "create_inode: could not create character device x\nset_attributes: failed to change mode", ImageRefused),
        (1, "FATAL ERROR: writer: No space left on device", ImageFailed),
        (1, "FATAL ERROR: failed to read inode", ImageRefused),
        (-9, "", ImageFailed),
    ],
)
def test_an_end_that_lost_more_than_devices_is_no_success(
    code: int, text: str, expected: type[Exception] | None
) -> None:
    with pytest.raises(expected) if expected else contextlib.nullcontext():
        check_end("it", code, text, Path("/scratch/it"))
