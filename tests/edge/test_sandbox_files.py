"""Files are read, written, listed and removed below a root, whatever lies there and wherever its links lead."""

import asyncio
import fcntl
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_scenes import SECRET, Ground, count_fds, find_reason, list_refusals, make_sparse

from retinue.sandbox import file_lanes, files, openat
from retinue.sandbox.file_errors import FileFailed, Reason
from retinue.sandbox.file_records import READ_MAX_BYTES

MIB = 2**20


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    before = count_fds()
    made = Ground(tmp_path)
    yield made
    made.close()
    assert count_fds() == before


async def test_what_is_written_is_read_again_at_any_offset(ground: Ground) -> None:
    content = os.urandom(3 * MIB)
    entry = await files.write(ground.fd, "/a", content)
    assert (entry.name, entry.type, entry.size, entry.mode) == ("a", "file", len(content), 0o644)
    assert await files.read(ground.fd, "a") == content
    assert await files.read(ground.fd, "/a", 2 * MIB - 5, 10) == content[2 * MIB - 5 : 2 * MIB + 5]
    assert await files.read(ground.fd, "/a", 4 * MIB, 10) == b""


async def test_writing_keeps_the_file_and_its_mode_and_cuts_what_was_longer(ground: Ground) -> None:
    (ground.root / "a").write_bytes(b"long before")
    (ground.root / "a").chmod(0o751)
    os.link(ground.root / "a", ground.root / "b")
    await files.write(ground.fd, "/a", b"now")
    assert (ground.root / "b").read_bytes() == b"now"
    entry = await files.write(ground.fd, "/a", b" and then", append=True)
    assert (entry.size, entry.mode) == (12, 0o751)
    assert (await files.write(ground.fd, "/a", b"", mode=0o6755)).mode == 0o755


async def test_parents_are_made_when_they_are_wanted(ground: Ground) -> None:
    assert await find_reason(files.write(ground.fd, "/x/y/z", b"")) is Reason.NOT_FOUND
    await files.write(ground.fd, "/x/y/z", b"deep", parents=True)
    assert (ground.root / "x/y/z").read_bytes() == b"deep"
    await files.make_directory(ground.fd, "/x/y/d/e", mode=0o700, parents=True)
    await files.make_directory(ground.fd, "/x/y/d/e", parents=True)
    await files.make_directory(ground.fd, "/", parents=True)
    assert stat.S_IMODE((ground.root / "x/y/d/e").stat().st_mode) == 0o700
    assert await find_reason(files.make_directory(ground.fd, "/x/y/d")) is Reason.EXISTS
    assert await find_reason(files.make_directory(ground.fd, "/x/y/z/d", parents=True)) is Reason.NOT_A_DIRECTORY
    assert await find_reason(files.make_directory(ground.fd, "/no/../d", parents=True)) is Reason.BAD_PATH


@pytest.mark.parametrize("how", ["absolute", "climbing", "to the outside", "chain"])
async def test_a_link_leads_somewhere_inside_or_nowhere(ground: Ground, how: str) -> None:
    target = {
        "absolute": "/etc/passwd",
        "climbing": "../../../../../../../../etc/passwd",
        "to the outside": f"{ground.outside}/secret",
        "chain": "chained",
    }[how]
    (ground.root / "link").symlink_to(target)
    (ground.root / "chained").symlink_to("/../../etc/passwd")
    assert await find_reason(files.read(ground.fd, "/link")) is Reason.NOT_FOUND
    inside = "/etc" if "outside" not in how else str(ground.outside)
    await files.make_directory(ground.fd, inside, parents=True)
    await files.write(ground.fd, "/link", b"inside")
    assert await files.read(ground.fd, "/link") == b"inside"
    assert (await files.stat(ground.fd, "/link")).target == target
    assert (await files.stat(ground.fd, "/link", follow=True)).size == 6
    assert await files.remove(ground.fd, "/link") == 1
    assert ground.is_outside_untouched()


async def test_links_without_end_and_magic_ones_are_refused(ground: Ground) -> None:
    (ground.root / "a").symlink_to("b")
    (ground.root / "b").symlink_to("a")
    assert await find_reason(files.read(ground.fd, "/a")) is Reason.LINK
    assert await find_reason(files.write(ground.fd, "/a", b"")) is Reason.LINK


async def test_what_is_no_regular_file_is_never_opened(ground: Ground) -> None:
    os.mkfifo(ground.root / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(ground.root / "sock"))
    for name in ("fifo", "sock"):
        assert await find_reason(files.read(ground.fd, name)) is Reason.NOT_A_FILE
        assert await find_reason(files.write(ground.fd, name, b"x")) is Reason.NOT_A_FILE
    assert await find_reason(files.read(ground.fd, "/")) is Reason.IS_A_DIRECTORY
    assert await find_reason(files.write(ground.fd, "/d/", b"x")) in (Reason.IS_A_DIRECTORY, Reason.NOT_FOUND)
    assert [(e.name, e.type) for e in await files.list(ground.fd, "/")] == [("fifo", "fifo"), ("sock", "socket")]


async def test_a_terabyte_of_holes_is_read_as_far_as_was_asked(ground: Ground) -> None:
    make_sparse(ground.root / "huge", 2**40)
    assert await files.read(ground.fd, "/huge", 2**39, 100) == bytes(100)
    assert len(await files.read(ground.fd, "/huge")) == READ_MAX_BYTES
    assert await find_reason(files.read(ground.fd, "/huge", 0, READ_MAX_BYTES + 1)) is Reason.TOO_LARGE
    assert await find_reason(files.write(ground.fd, "/huge", bytes(READ_MAX_BYTES + 1))) is Reason.TOO_LARGE


async def test_names_may_be_any_bytes(ground: Ground) -> None:
    for name in (b"line\nbreak", b"\xff\xfe", b"-rf", b" ", "ü".encode()):
        await files.write(ground.fd, b"/" + name, name)
        assert await files.read(ground.fd, b"/" + name) == name
        assert await files.read(ground.fd, os.fsdecode(name)) == name
    listed = {entry.name: entry.name_base64 for entry in await files.list(ground.fd, "/")}
    assert listed == {"line\nbreak": "", "\ufffd\ufffd": "//4=", "-rf": "", " ": "", "ü": ""}


@pytest.mark.parametrize("path", ["", "\0", "a\0b", "x" * 256, "y/" * 2100, "\ud800", "/..", ".", "/"])
async def test_a_path_that_is_none_is_refused(ground: Ground, path: str) -> None:
    assert await find_reason(files.write(ground.fd, path, b"")) is Reason.BAD_PATH
    assert await find_reason(files.remove(ground.fd, path, recursive=True)) is Reason.BAD_PATH


async def test_what_is_not_permitted_inside_is_not_permitted_here(ground: Ground) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    await files.write(ground.fd, "/mine", b"x", mode=0)
    assert await find_reason(files.read(ground.fd, "/mine")) is Reason.DENIED


async def test_proc_and_dev_are_not_the_sandboxs_disk() -> None:
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        for path in ("/proc/self/environ", "/proc/1/status", "/proc", "/dev/null", "/proc/self/cwd/x"):
            reason = await find_reason(files.read(fd, path))
            assert reason in (Reason.OUTSIDE, Reason.LINK, Reason.NOT_FOUND)
        assert await find_reason(files.list(fd, "/proc")) is Reason.OUTSIDE
        assert await find_reason(files.stat(fd, "/proc/self")) is Reason.OUTSIDE
    finally:
        os.close(fd)


@contextmanager
def hold_lease(path: Path) -> Iterator[None]:
    """Whoever opens it has to wait for us, up to fs.lease-break-time."""
    old = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with open(path, "rb+") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        try:
            yield
        finally:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, old)


async def test_a_lease_of_a_hostile_process_costs_a_refusal_and_no_wait(ground: Ground) -> None:
    (ground.root / "held").write_bytes(b"x")
    with hold_lease(ground.root / "held"):
        assert await find_reason(files.read(ground.fd, "/held", time_s=20)) is Reason.BUSY
        assert (await ground.download("/"))[1].skipped_names == ["held"]


async def test_a_directory_lists_its_links_as_links_up_to_a_limit(ground: Ground) -> None:
    (ground.root / "link").symlink_to(ground.outside / "secret")
    (ground.root / "d").mkdir()
    listed = await files.list(ground.fd, "/")
    assert [(entry.name, entry.type) for entry in listed] == [("d", "directory"), ("link", "link")]
    assert listed[1].target == str(ground.outside / "secret")
    assert await find_reason(files.list(ground.fd, "/", limit=1)) is Reason.TOO_MANY
    assert await find_reason(files.list(ground.fd, "/link")) is Reason.NOT_FOUND


def make_deep(base: Path, depth: int) -> None:
    """A chain of directories that no path reaches the end of."""
    fd = os.open(base, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


async def test_a_tree_of_any_depth_is_removed_and_its_links_are_not_followed(ground: Ground) -> None:
    (ground.root / "t").mkdir()
    (ground.root / "t" / "link").symlink_to(ground.outside)
    (ground.root / "t" / "file").symlink_to(ground.outside / "secret")
    make_deep(ground.root / "t", 4000)
    assert await find_reason(files.remove(ground.fd, "/t")) is Reason.NOT_EMPTY
    assert await files.remove(ground.fd, "/t", recursive=True) == 4004
    assert os.listdir(ground.root) == []
    assert ground.is_outside_untouched()


async def test_a_removal_ends_while_somebody_fills_the_tree_again(ground: Ground) -> None:
    (ground.root / "t").mkdir()
    done = threading.Event()

    def fill() -> None:
        while not done.is_set():
            try:
                os.makedirs(ground.root / "t" / "x" / "y", exist_ok=True)
                (ground.root / "t" / "x" / "y" / "f").touch()
            except OSError:
                pass

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        for _ in range(20):
            reasons = await list_refusals(files.remove(ground.fd, "/t", recursive=True))
            assert set(reasons) <= {Reason.NOT_EMPTY, Reason.NOT_FOUND}
    finally:
        done.set()
        filler.join()


async def test_a_call_that_hangs_is_left_behind_with_what_it_uses(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, goes_on, seen = openat.find, threading.Event(), list[int]()

    def hang(root_fd: int, *words: object) -> int:
        goes_on.wait(30)
        seen.append(os.fstat(root_fd).st_ino)
        return real(root_fd, *words)  # type: ignore[arg-type]

    (ground.root / "a").write_bytes(b"x")
    monkeypatch.setattr(openat, "find", hang)
    hung = [asyncio.create_task(find_reason(files.read(ground.fd, "/a", time_s=3))) for _ in range(20)]
    while not all(task.done() for task in hung):
        await asyncio.wait(hung)
    assert {task.result() for task in hung} == {Reason.LATE}
    monkeypatch.setattr(openat, "find", real)
    assert await files.read(ground.fd, "/a") == b"x"
    inode = os.fstat(ground.fd).st_ino
    goes_on.set()
    async with asyncio.timeout(20):
        while len(seen) < 20:  # noqa: ASYNC110  the threads have no loop
            await asyncio.sleep(0.01)
    assert set(seen) == {inode}


async def test_too_many_that_hang_are_our_failure(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lanes, "HANGING_MAX", 0)
    with pytest.raises(FileFailed):
        await files.read(ground.fd, "/a")


async def test_a_cancelled_call_leaves_no_descriptor(ground: Ground) -> None:
    (ground.root / "a").write_bytes(SECRET)
    for _ in range(200):
        task = asyncio.create_task(files.read(ground.fd, "/a"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
