"""Every limit holds; the sandbox works afterwards and its neighbour never noticed."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sandbox_scenes import Scene, open_scene, prepare, probe, python, shell, shell_text

from retinue.sandbox.box import Box
from retinue.sandbox.link import Refused
from retinue.sandbox.output import run
from retinue.sandbox.wire import Target, Why

MIB = 1024**2


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene, None]:
    program, image = prepare(tmp_path_factory.getbasetemp())
    async with open_scene(program, image) as opened:
        yield opened


async def check_alive(*boxes: Box) -> None:
    for box in boxes:
        assert await shell_text(box, "echo works > /tmp/after && cat /tmp/after") == "works"


@pytest.mark.parametrize("how", ["private", "shared", "undumpable"])
async def test_memory_beyond_the_limit_ends_what_runs_and_says_why(scene: Scene, how: str) -> None:
    box, neighbour = await scene.create(memory_bytes=64 * MIB), await scene.create()
    sleeper = neighbour.start(["sleep", "600"])
    ran = await run(box, ["probe", "eat", "200", how])
    assert (ran.ended.why, ran.ended.exit_code) == (Why.MEMORY, -9)
    assert box.memory_kills == 1
    await check_alive(box, neighbour)
    assert await sleeper.signal(0) == 1
    assert (await box.read_usage()).process_count == 0


async def test_pages_that_a_fork_shares_count_once(scene: Scene) -> None:
    box = await scene.create(memory_bytes=200 * MIB)
    assert await probe(box, "eat", "100", "forks") == "ok"
    assert box.memory_kills == 0


async def test_memory_that_many_processes_share_out_counts_in_all(scene: Scene) -> None:
    box = await scene.create(memory_bytes=100 * MIB)
    ran = await shell(box, "for i in 1 2 3 4 5 6; do probe eat 30 private & done; wait; exit 3")
    assert ran.ended.why is Why.MEMORY
    await check_alive(box)


async def test_one_process_is_refused_private_memory_beyond_its_own_limit(scene: Scene) -> None:
    box = await scene.create(data_bytes=128 * MIB)
    assert await probe(box, "eat", "200", "private") == "ENOMEM"
    await check_alive(box)


async def test_a_crowd_stops_at_its_limit_and_each_sandbox_has_its_own(scene: Scene) -> None:
    one, other = await scene.create(pid_count=30), await scene.create(pid_count=40)
    for box, limit in ((one, 30), (other, 40), (one, 30)):
        ran = await run(box, ["probe", "fork", "200"])
        assert int(ran.stdout) == limit - 2, "pid 1 and the first are two of them"
    await check_alive(one, other)


async def test_a_fork_bomb_is_ended_to_the_last_process(scene: Scene) -> None:
    box, neighbour = await scene.create(pid_count=100), await scene.create(pid_count=100)
    bomb = box.start(["probe", "bomb"])
    await shell_text(neighbour, "echo fine")
    # Pid 1 has a few processes more than the bomb may take: somebody can still look.
    crowd = await python(box, "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))")
    assert 20 < int(crowd) <= 108
    assert await bomb.kill(20.0) == 0
    assert (await bomb.wait()).why is Why.KILLED
    assert (await box.read_usage()).process_count == 0
    await check_alive(box, neighbour)


async def test_the_disk_is_full_at_its_limit_whether_by_bytes_or_by_files(scene: Scene) -> None:
    box, neighbour = await scene.create(disk_bytes=16 * MIB, inode_count=300), await scene.create(disk_bytes=16 * MIB)
    ran = await shell(box, "dd if=/dev/zero of=/tmp/big bs=1M count=64")
    assert ran.ended.exit_code == 1
    assert b"No space left" in ran.stderr or b"File too large" in ran.stderr
    ran = await shell(box, "dd if=/dev/zero of=/dev/shm/big bs=1M count=64; cat /dev/zero > /image/more")
    assert b"No space left" in ran.stderr
    usage = await box.read_usage()
    assert usage.disk_max_bytes == 16 * MIB
    assert usage.disk_bytes == 16 * MIB
    await shell_text(box, "rm /tmp/big /dev/shm/big /image/more")
    code = """
made = 0
try:
    while True:
        open(f"/tmp/{made}", "x").close(); made += 1
except OSError as error:
    print(made, error.strerror)
import os
for number in range(made): os.unlink(f"/tmp/{number}")
"""
    made, words = (await python(box, code)).split(" ", 1)
    assert 200 < int(made) < 300
    assert words == "No space left on device"
    await check_alive(box, neighbour)


async def test_shared_memory_has_a_size_of_its_own_when_given(scene: Scene) -> None:
    box = await scene.create(shm_bytes=4 * MIB, disk_bytes=32 * MIB)
    ran = await shell(box, "dd if=/dev/zero of=/dev/shm/big bs=1M count=16")
    assert b"No space left" in ran.stderr
    await shell_text(box, "dd if=/dev/zero of=/tmp/big bs=1M count=16; stat -c %a /dev/shm")
    assert (await box.read_usage()).disk_bytes < 20 * MIB


async def test_what_is_memory_by_another_name_is_limited_too(scene: Scene) -> None:
    box = await scene.create(sysv_bytes=8 * MIB, queue_bytes=200_000)
    assert await probe(box, "shm", "4") == "ok"
    assert await probe(box, "shm", "16") == "EINVAL"
    assert await probe(box, "shm", "6") == "ENOSPC"
    made, words = (await probe(box, "queue")).split()
    assert (int(made), words) == (2, "EMFILE")
    assert "ENOSYS" in await python(
        box, "import os, errno\ntry: os.memfd_create('x')\nexcept OSError as e: print(errno.errorcode[e.errno])"
    )
    allowed = await scene.create(has_memfd=True, file_bytes=1 * MIB)
    code = "import os, errno, signal\nsignal.signal(25, signal.SIG_IGN)\nfd = os.memfd_create('x')\ntry: os.ftruncate(fd, 1 << 24)\nexcept OSError as e: print(errno.errorcode[e.errno])"  # noqa: E501
    assert await python(allowed, code) == "EFBIG"


async def test_descriptors_terminals_and_watches_have_limits(scene: Scene) -> None:
    box = await scene.create(open_files=64, pty_count=4, inotify_count=3)
    code = """
import ctypes, errno, os
def count(make):
    held = []
    try:
        while len(held) < 5000: held.append(make())
    except OSError as error:
        found = errno.errorcode[error.errno]
    for each in held:
        for fd in each if isinstance(each, tuple) else (each,): os.close(fd)
    return len(held), found
libc = ctypes.CDLL(None, use_errno=True)
def watch():
    fd = libc.inotify_init()
    if fd < 0: raise OSError(ctypes.get_errno(), "inotify")
    return fd
print(count(lambda: os.open("/", os.O_RDONLY)), count(os.openpty), count(watch))
"""
    assert await python(box, code) == "(61, 'EMFILE') (4, 'ENOSPC') (3, 'EMFILE')"


async def test_cpu_time_of_a_process_ends_it(scene: Scene) -> None:
    box = await scene.create()
    ran = await shell(box, "while :; do :; done", cpu_s=1)
    assert (ran.ended.why, ran.ended.exit_code) == (Why.SIGNALLED, -24)
    assert 0.9 < ran.ended.cpu_s < 3


async def test_no_core_is_ever_written_nor_piped(scene: Scene) -> None:
    box = await scene.create()
    assert await probe(box, "core") == "1"
    ran = await shell(box, "cd /tmp; ulimit -c 0; ulimit -c; kill -SEGV $$")
    assert ran.ended.exit_code == -11
    assert ran.stdout == b"0\n" or ran.stdout == b"1\n"
    assert await shell_text(box, "ls /tmp") == ""


async def test_a_mark_cannot_be_changed_and_a_hidden_process_not_lost(scene: Scene) -> None:
    box = await scene.create()
    assert [await probe(box, "mark", how) for how in ("0", "1")] == ["EPERM", "EPERM"]
    hider, keeper = box.start(["probe", "hide"]), box.start(["sleep", "600"])
    assert (await hider.wait()).why is Why.EXITED
    assert await hider.signal(0, Target.TREE) == 1
    assert await hider.signal(15, Target.TREE) == 1
    assert await hider.signal(0, Target.TREE) == 1, "it ignores SIGTERM"
    assert await hider.kill() == 0
    assert await hider.signal(0, Target.TREE) == 0
    assert await keeper.signal(0) == 1, "another command of the same sandbox lives"
    assert await keeper.kill() == 0


async def test_a_full_crowd_is_the_sandboxs_own_shortage(scene: Scene) -> None:
    box = await scene.create(pid_count=20)
    crowd = [box.start(["sleep", "600"]) for _ in range(40)]
    with pytest.raises(Refused) as refused:
        await crowd[-1].wait()
    assert refused.value.errno == 11
    for each in crowd:
        await each.kill()
    await check_alive(box)


async def test_an_upper_layer_on_a_disk_works_and_is_left_to_the_host(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program, image = prepare(tmp_path_factory.getbasetemp())
    (tmp_path / "one").mkdir()
    async with open_scene(program, image, uppers=tmp_path) as scene:
        box = await scene.create(upper="one", shm_bytes=MIB)
        await shell_text(box, "echo kept > /etc/kept; rm -r /image/deep; rm -rf /image/deep")
        assert await shell_text(box, "ls /image") == "file"
        box.close()
        await box.gone
        assert (tmp_path / "one" / "u" / "etc" / "kept").read_text() == "kept\n"


async def test_priority_and_cpus_are_those_that_were_given(scene: Scene) -> None:
    box = await scene.create(nice_by=7, cpus=frozenset({0}))
    code = "import os; print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0))"
    assert await python(box, code) == "7 {0}"


async def test_a_name_of_the_image_can_be_removed_and_made_again(scene: Scene) -> None:
    box = await scene.create()
    await shell_text(box, "rm -rf /image && mkdir /image && echo new > /image/file")
    assert await shell_text(box, "ls /image") == "file"
    # What userxattr is for: without it the kernel cannot remember that a directory hides the image's.
    diagnosis = await scene.create(has_userxattr=False)
    ran = await shell(diagnosis, "rm -rf /image && mkdir /image && ls /image")
    assert ran.ended.exit_code != 0 or ran.stdout != b""
