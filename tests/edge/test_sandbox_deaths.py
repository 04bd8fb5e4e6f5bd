"""Whoever of ours is killed takes all below with it, at once, and the host hears of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sandbox_scenes import Scene, is_alive, list_descendants, open_scene, prepare, shell_text, until

from retinue.errors import PermanentError
from retinue.sandbox.box import Box
from retinue.sandbox.config import BoxConfig
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.space import NodeSpace

HOST = """
import asyncio, sys
from pathlib import Path
from retinue.sandbox.config import BoxConfig
from retinue.sandbox.space import NodeSpace

async def main():
    space = await NodeSpace.start(Path(sys.argv[1]), Path(sys.argv[2]))
    zygote = await space.start_zygote([Path(sys.argv[3])])
    boxes = [await zygote.create(BoxConfig()) for _ in range(10)]
    for box in boxes:
        box.start(["/bin/sh", "-c", "probe hide; dd if=/dev/zero of=/tmp/f bs=1M count=5; sleep 600"])
        await box.read_usage()
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene, None]:
    program, image = prepare(tmp_path_factory.getbasetemp())
    async with open_scene(program, image) as opened:
        yield opened


async def make_busy(scene: Scene, count: int) -> list[Box]:
    boxes = [await scene.create() for _ in range(count)]
    for box in boxes:
        await shell_text(box, "probe hide; sleep 600 > /dev/null 2>&1 & echo x > /tmp/x")
    return boxes


def read_name(pid: int) -> str:
    """The name of a process; empty when it has just ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def find_zygotes(scene: Scene) -> list[int]:
    everyone = list_descendants(scene.space.pid)
    return [pid for pid in everyone if read_name(pid) == "sandbox-zygote"]


async def test_the_end_of_a_zygote_is_the_end_of_its_sandboxes_alone(
    scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    [first] = find_zygotes(scene)
    boxes = await make_busy(scene, 5)
    below = list_descendants(first)
    assert len(below) >= 10
    other = await scene.space.start_zygote([prepare(tmp_path_factory.getbasetemp())[1]])
    survivor = await other.create(BoxConfig())
    os.kill(first, signal.SIGKILL)
    await until(lambda: not any(map(is_alive, below)))
    await until(lambda: not any(box.is_open for box in boxes))
    assert os.WTERMSIG(await asyncio.wait_for(scene.zygote.ended, 20)) == signal.SIGKILL
    assert await shell_text(survivor, "echo alive") == "alive"
    with pytest.raises(LinkLost):
        await scene.create()


@pytest.mark.parametrize("who", ["outer", "space"])
async def test_the_end_of_the_space_is_the_end_of_everything(scene: Scene, who: str) -> None:
    await make_busy(scene, 3)
    below = list_descendants(scene.space.pid)
    [inner] = Path(f"/proc/{scene.space.pid}/task/{scene.space.pid}/children").read_text().split()
    os.kill(scene.space.pid if who == "outer" else int(inner), signal.SIGKILL)
    await until(lambda: not any(map(is_alive, below)))
    await asyncio.wait_for(scene.space.lost, 20)
    with pytest.raises(LinkLost):
        await scene.create()


async def test_the_end_of_the_host_is_the_end_of_everything(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program, image = prepare(tmp_path_factory.getbasetemp())
    words = [sys.executable, "-c", HOST, str(tmp_path), str(program), str(image)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as host:  # noqa: ASYNC220  nothing else runs here
        assert host.stdout
        try:
            assert host.stdout.readline() == b"up\n"
            await until(lambda: len(list_descendants(host.pid)) >= 30)
            below = list_descendants(host.pid)
        finally:
            host.kill()
        await until(lambda: not any(map(is_alive, below)))
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


async def test_a_sandbox_whose_pid_1_is_killed_from_outside_is_lost_and_no_other(scene: Scene) -> None:
    one, other = await make_busy(scene, 2)
    os.kill(one.pid, signal.SIGKILL)
    assert os.WTERMSIG(await asyncio.wait_for(one.gone, 20)) == signal.SIGKILL
    assert not one.is_open
    await shell_text(other, "true")


async def test_destroyed_sandboxes_leave_no_process_and_no_descriptor(scene: Scene) -> None:
    (await scene.create()).close()
    await until(lambda: scene.zygote.box_count == 0)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        boxes = await asyncio.gather(*(scene.create() for _ in range(16)))
        for box in boxes:
            box.start(["sleep", "600"])
            box.close()
        await asyncio.wait_for(asyncio.gather(*(box.gone for box in boxes)), 30)
    assert len(os.listdir("/proc/self/fd")) == before
    [zygote] = find_zygotes(scene)
    assert list_descendants(zygote) == set()


async def test_a_setup_that_fails_names_its_step_and_leaves_nothing(scene: Scene) -> None:
    with pytest.raises(Refused) as refused:
        await scene.create(upper="nowhere")
    assert (refused.value.step, refused.value.errno) == ("enter the upper layer", 2)
    with pytest.raises(Refused, match="set the hostname"):
        await scene.create(hostname="x" * 100)
    with pytest.raises(Refused) as refused:
        await scene.space.start_zygote([Path("/nowhere/at/all")])
    assert refused.value.step == "mount img0"
    await until(lambda: scene.zygote.box_count == 0)
    assert await shell_text(await scene.create(), "echo fine") == "fine"


async def test_without_the_program_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"python -m retinue\.sandbox\.build"):
        await NodeSpace.start(tmp_path, tmp_path / "nothing")


async def test_a_helper_runs_in_the_space_and_dies_with_it(scene: Scene) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    quick = await scene.space.start_helper(["/bin/sh", "-c", "exit 3"], {}, (null, null, null))
    slow = await scene.space.start_helper(["/bin/sleep", "600"], {}, (null, null, null))
    os.close(null)
    assert os.waitstatus_to_exitcode(await asyncio.wait_for(quick.ended, 20)) == 3
    with pytest.raises(Refused):
        await quick.signal(15)
    below = list_descendants(scene.space.pid)
    await slow.signal(0)
    await scene.space.close()
    with pytest.raises(LinkLost):
        await slow.ended
    await until(lambda: not any(map(is_alive, below)))


async def test_a_create_that_nobody_waits_for_any_more_leaves_nothing(scene: Scene) -> None:
    for _ in range(20):
        for turns in range(6):
            asking = asyncio.ensure_future(scene.create())
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
    survivor = await scene.create()
    await until(lambda: len(find_zygotes(scene)) == 1)  # One that is dying may still have the zygote's name.
    [zygote] = find_zygotes(scene)
    await until(lambda: list_descendants(zygote) == {survivor.pid})
    await until(lambda: scene.zygote.box_count == 1)
    assert await shell_text(survivor, "echo alive") == "alive"


async def test_a_helper_that_nobody_waits_for_any_more_is_ended(scene: Scene) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    before = list_descendants(scene.space.pid)
    asking = asyncio.ensure_future(scene.space.start_helper(["/bin/sleep", "600"], {}, (null, null, null)))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    os.close(null)
    os.close(await scene.space.open_base())
    await until(lambda: list_descendants(scene.space.pid) == before)
