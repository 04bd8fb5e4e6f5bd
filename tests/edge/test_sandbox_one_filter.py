"""One filter for a whole node: sandboxes and commands inherit it, and the keys that open it are nowhere inside.

Nobody can count the programs that a kernel has compiled. But whoever is under the filter cannot install another, so a
process that has one filter, below a process that has it, has the same one.
"""

import asyncio
import errno
import os
import platform
import re
import signal
import struct
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sandbox_scenes import Scene, list_descendants, open_scene, prepare, probe, python, shell_text, until

from retinue.sandbox.config import BoxConfig
from retinue.sandbox.link import Refused
from retinue.sandbox.wire import Flag

COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
CLONE, SETHOSTNAME, PRLIMIT, SECCOMP = (pair[COLUMN] for pair in ((56, 220), (170, 161), (302, 261), (317, 277)))
NEW_USER = str(0x10000000 | signal.SIGCHLD)


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene, None]:
    program, image = prepare(tmp_path_factory.getbasetemp())
    async with open_scene(program, image) as opened:
        yield opened


def find_all(scene: Scene, name: str) -> list[int]:
    everyone = list_descendants(scene.space.pid)
    return [pid for pid in everyone if read_name(pid) == name]


def read_name(pid: int) -> str:
    """The name of a process; empty when it has just ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def count_filters(pid: int) -> int:
    """How many filters a process is under."""
    found = re.search(r"^Seccomp_filters:\t(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if found is None:
        pytest.skip("cannot here: Linux tells the number of filters from 5.9 on")
    return int(found[1])


async def test_no_create_and_no_exec_installs_a_filter(scene: Scene) -> None:
    boxes = [await scene.create() for _ in range(5)]
    for box in boxes:
        box.start(["/bin/sh", "-c", "sleep 600 & sleep 600"])
    async with asyncio.timeout(20):
        while len(list_descendants(boxes[-1].pid)) < 3:  # noqa: ASYNC110  the kernel sets no Event
            await asyncio.sleep(0.01)
    [inner], [warden] = find_all(scene, "sandbox-space"), find_all(scene, "sandbox-warden")
    [zygote] = find_all(scene, "sandbox-zygote")
    assert (count_filters(inner), count_filters(warden), count_filters(zygote)) == (0, 1, 1)
    below = list_descendants(zygote)
    assert len(below) >= 5 * 3
    assert {count_filters(pid) for pid in below} == {1}
    # And nobody among them could have put it on by itself.
    assert await probe(boxes[0], "call", str(SECCOMP), "1", "0", "0") == "ENOSYS"
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.prctl(22, 2, 0, 0, 0), ctypes.get_errno())"
    )
    assert await python(boxes[0], code) == "-1 22"


async def test_every_image_and_shard_has_the_same_filter_and_each_kind_of_sandbox_one(scene: Scene) -> None:
    more = [await scene.space.start_zygote(scene.lowers) for _ in range(4)]
    assert len(find_all(scene, "sandbox-zygote")) == 5
    assert len(find_all(scene, "sandbox-warden")) == 1
    await scene.create(has_net=False)
    await scene.create(has_net=False, has_userxattr=False)
    assert len(find_all(scene, "sandbox-warden")) == 2
    for zygote in more:
        assert await shell_text(await zygote.create(BoxConfig()), "echo works") == "works"


async def test_a_warden_that_is_killed_takes_nobody_along_and_the_next_zygote_finds_another(scene: Scene) -> None:
    box = await scene.create()
    [warden] = find_all(scene, "sandbox-warden")
    os.kill(warden, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{warden}").exists())
    assert await shell_text(box, "echo alive") == "alive"
    assert await shell_text(await scene.create(), "echo made") == "made"
    zygote = await scene.space.start_zygote(scene.lowers)
    assert await shell_text(await zygote.create(BoxConfig()), "echo made") == "made"
    assert len(find_all(scene, "sandbox-warden")) == 1


async def test_a_warden_that_the_kernel_holds_is_named_and_holds_up_no_sandbox(scene: Scene) -> None:
    """As where no filter can be installed any more; here it is stopped."""
    box = await scene.create()
    [warden] = find_all(scene, "sandbox-warden")
    os.kill(warden, signal.SIGSTOP)
    with pytest.raises(Refused) as refused:
        await scene.space.start_zygote(scene.lowers)
    assert (refused.value.step, refused.value.errno) == ("put on the filter of system calls", errno.ETIMEDOUT)
    assert await shell_text(box, "echo alive") == "alive"
    assert await shell_text(await scene.create(), "echo made") == "made"
    os.kill(warden, signal.SIGCONT)
    zygote = await scene.space.start_zygote(scene.lowers)
    assert await shell_text(await zygote.create(BoxConfig()), "echo made") == "made"
    await until(lambda: len(find_all(scene, "sandbox-zygote")) == 2)


async def test_a_zygote_makes_no_sandbox_of_another_kind(scene: Scene) -> None:
    for config in (BoxConfig(has_net=False), BoxConfig(fakes_ids=False), BoxConfig(has_memfd=True)):
        with pytest.raises(Refused) as refused:
            await scene.zygote.create(config)
        assert (refused.value.step, refused.value.errno) == ("clone a sandbox", 22)
    await scene.create()
    assert BoxConfig(has_userxattr=False).filter_flags == Flag.NET | Flag.FAKE_IDS


async def test_a_program_cannot_hang_one_on_a_socket(scene: Scene) -> None:
    """Freed a thousand at once they would do to the node what filters of system calls do."""
    code = """
import ctypes, errno, socket
allow = ctypes.create_string_buffer(b"\\x06\\0\\0\\0\\xff\\xff\\0\\0")
import struct
program = struct.pack("HxxxxxxP", 1, ctypes.addressof(allow))
said = set()
for sock in (socket.socket(), socket.socket(type=socket.SOCK_DGRAM), *socket.socketpair()):
    for name in (26, 51):
        try: sock.setsockopt(1, name, program); said.add("attached")
        except OSError as error: said.add(errno.errorcode[error.errno])
print(*said)
"""
    assert await python(await scene.create(), code) == "ENOPROTOOPT"


def read_keys(pid: int, program: Path) -> tuple[int, int]:
    """The keys that a process of ours holds: its variable `keys`, at the address in the program's own table."""
    table = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    [address] = [int(line.split()[0], 16) for line in table.splitlines() if line.split()[1:] == ["b", "keys"]]
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        setup, mark = struct.unpack("<QQ", memory.read(16))
    return setup, mark


async def test_who_knew_the_keys_would_still_be_refused_by_the_kernel(
    scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    box = await scene.create()
    program, _ = prepare(tmp_path_factory.getbasetemp())
    [zygote] = find_all(scene, "sandbox-zygote")
    setup, mark = read_keys(zygote, program)
    assert len({0, setup, mark}) == 3
    clone = ("call", str(CLONE), NEW_USER, "0", "0", "0", "0")
    assert await probe(box, *clone, str(setup ^ 1)) == "EPERM", "the filter"
    assert await probe(box, *clone, str(setup)) == "ENOSPC", "user.max_user_namespaces"
    assert await probe(box, "call", str(SETHOSTNAME), "0", "0", "0", "0", "0", str(setup)) == "EPERM", "no capability"
    prlimit = ("call", str(PRLIMIT), "0", "10", "1", "0", "0")
    assert [await probe(box, *prlimit, str(key)) for key in (mark ^ 1, mark)] == ["EPERM", "EFAULT"]


@pytest.mark.root
async def test_the_key_that_set_a_sandbox_up_is_nowhere_in_it(
    scene: Scene, tmp_path_factory: pytest.TempPathFactory
) -> None:
    box = await scene.create()
    program, _ = prepare(tmp_path_factory.getbasetemp())
    [zygote] = find_all(scene, "sandbox-zygote")
    setup, mark = (struct.pack("<Q", key) for key in read_keys(zygote, program))
    sleeper = box.start(["sleep", "600"])
    await until(lambda: list_descendants(box.pid))
    [command] = list_descendants(box.pid)
    await until(lambda: read_name(command) == "sleep")
    assert [setup in read_memory(zygote), mark in read_memory(zygote)] == [True, True]
    assert [setup in read_memory(box.pid), mark in read_memory(box.pid)] == [False, True]
    assert [setup in read_memory(command), mark in read_memory(command)] == [False, False]
    await sleeper.kill()


def read_memory(pid: int) -> bytes:
    """All that a process can write to, as root can read it."""
    found = []
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, access = line.split()[:2]
            begin, end = (int(word, 16) for word in span.split("-"))
            if "w" in access:
                memory.seek(begin)
                found.append(memory.read(end - begin))
    return b"".join(found)
