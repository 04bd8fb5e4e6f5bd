"""Commands in a sandbox: exact bytes, typed ends, nothing that leaks and nothing that waits for ever."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from sandbox_scenes import Scene, list_descendants, open_scene, prepare, python, shell, shell_text, until

from retinue.sandbox.box import Box
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.output import run
from retinue.sandbox.wire import Target, Why, WireError


@pytest.fixture
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Scene, None]:
    program, image = prepare(tmp_path_factory.getbasetemp())
    async with open_scene(program, image) as opened:
        yield opened


@pytest.fixture
async def box(scene: Scene) -> Box:
    return await scene.create()


async def test_bytes_and_codes_come_back_exact(box: Box) -> None:
    ran = await run(
        box, ["python3", "-S", "-c", "import os; os.write(1, bytes(range(256))); os.write(2, b'\\0e'); os._exit(7)"]
    )
    assert (ran.stdout, ran.stderr) == (bytes(range(256)), b"\0e")
    assert (ran.ended.why, ran.ended.exit_code) == (Why.EXITED, 7)
    ran = await shell(box, "kill -USR1 $$")
    assert (ran.ended.why, ran.ended.exit_code) == (Why.SIGNALLED, -10)


async def test_a_command_that_never_ran_says_which_step_failed(box: Box) -> None:
    cases = {
        ("/bin/nothing", "/"): errno.ENOENT,
        ("/etc/passwd", "/"): errno.EACCES,
        ("true", "/nowhere"): errno.ENOENT,
        ("true", "/etc/passwd"): errno.ENOTDIR,
    }
    for (program, cwd), number in cases.items():
        with pytest.raises(Refused) as refused:
            await box.start([program], cwd=cwd).wait()
        assert refused.value.errno == number
        assert refused.value.step == ("run the command" if cwd == "/" else "enter the working directory")
    assert (await shell(box, "exit 127")).ended.exit_code == 127


async def test_a_request_that_cannot_be_one_is_refused_here(box: Box) -> None:
    with pytest.raises(WireError, match="NUL"):
        box.start(["echo", "a\0b"])
    with pytest.raises(Refused, match="read the request"):
        await box.start([]).wait()
    await shell_text(box, "true")


async def test_stdin_is_empty_unless_given(box: Box) -> None:
    assert await shell_text(box, "cat; echo end") == "end"
    read, write = os.pipe()
    with os.fdopen(write, "wb") as given:
        given.write(b"given")
    out_read, out_write = os.pipe()
    ended = await box.start(["cat"], stdin=read, stdout=out_write).wait()
    os.close(read)
    os.close(out_write)
    assert (ended.exit_code, os.read(out_read, 100)) == (0, b"given")
    os.close(out_read)


async def test_long_words_and_a_large_environment_arrive(box: Box) -> None:
    word = "x" * 120_000
    env = {f"NAME_{number}": "y" * 3000 for number in range(100)}
    ran = await run(box, ["/bin/sh", "-c", "echo ${#0} ${#1} ${#NAME_99}; env | wc -c", word, word], env=env)
    lengths, size = ran.stdout.split(b"\n", 1)
    assert lengths == b"120000 120000 3000"
    assert int(size) > 300_000
    with pytest.raises(Refused) as refused:
        await box.start(["true", "x" * 200_000]).wait()
    assert refused.value.errno == errno.E2BIG


async def test_a_child_that_holds_the_pipe_does_not_delay_the_answer(box: Box) -> None:
    async with asyncio.timeout(20):
        ran = await shell(box, "sleep 600 & echo started")
    assert (ran.stdout, ran.is_timed_out) == (b"started\n", False)
    assert (await box.read_usage()).process_count == 1


async def test_at_the_deadline_all_of_it_is_gone_and_what_was_printed_is_there(box: Box) -> None:
    ran = await shell(box, "echo before; probe hide; (sleep 600 &); trap '' TERM; sleep 600", timeout_s=0.5)
    assert (ran.is_timed_out, ran.stdout, ran.ended.why) == (True, b"before\n", Why.KILLED)
    assert (await box.read_usage()).process_count == 0
    assert await shell_text(box, "echo next") == "next"


async def test_a_flood_blocks_nobody_and_is_bounded(box: Box) -> None:
    ran = await run(box, ["dd", "if=/dev/zero", "bs=1M", "count=50"], limit_bytes=1000)
    assert ran.ended.exit_code == 0
    assert len(ran.stdout) == 1000


async def test_stopped_processes_do_not_stop_the_sandbox(box: Box) -> None:
    """Not even those that stop every new process before it becomes its command."""
    stopper = box.start(["/bin/sh", "-c", "while :; do kill -STOP -1; done"])
    held = [box.start(["true"]) for _ in range(20)]
    for running in held:
        assert await running.kill() == 0
        assert (await running.wait()).why in (Why.KILLED, Why.EXITED)
    assert await stopper.kill() == 0
    assert await shell_text(box, "echo next") == "next"


async def test_a_signal_reaches_the_leader_the_group_or_the_tree(box: Box) -> None:
    script = "trap 'echo leader' USR1; sleep 600 & probe hide; echo up; wait; wait"
    running = box.start(["/bin/sh", "-c", script])
    async with asyncio.timeout(20):
        while await running.signal(0, Target.TREE) < 3:  # noqa: ASYNC110  the kernel sets no Event
            await asyncio.sleep(0.01)
    assert await running.signal(0) == 1
    assert await running.signal(0, Target.GROUP) == 1
    assert await running.signal(9, Target.TREE) == 3
    assert (await running.wait()).exit_code == -9
    assert await running.signal(9) == 0


async def test_many_commands_at_once_each_get_their_own_end(box: Box) -> None:
    codes = await asyncio.gather(*(shell(box, f"exit {number}") for number in range(60)))
    assert [ran.ended.exit_code for ran in codes] == list(range(60))


async def test_cpu_time_of_orphans_is_counted(box: Box) -> None:
    code = """
import os, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.write(write, str(os.getpid()).encode())
        while time.process_time() < 0.5: pass
    os._exit(0)
os.wait()
orphan = int(os.read(read, 20))
while True:
    try: os.kill(orphan, 0)
    except ProcessLookupError: break  # Reaped, and by pid 1 alone.
    time.sleep(0.02)
"""
    ran = await run(box, ["python3", "-S", "-E", "-c", code])
    assert ran.ended.exit_code == 0, ran
    assert ran.ended.cpu_s > 0.5
    assert ran.ended.max_rss_kib > 1000


async def test_two_thousand_commands_leave_nothing_behind(scene: Scene) -> None:
    # So few descriptors that pid 1, which has this limit too, could not lose forty of them.
    box = await scene.create(open_files=40)
    await shell_text(box, "true")
    before = len(os.listdir("/proc/self/fd"))
    pid1_kib = 0
    for turn in range(40):
        ended = await asyncio.gather(*(box.start(["true"]).wait() for _ in range(48)))
        assert {end.exit_code for end in ended} == {0}
        await box.read_usage()
        pid1_kib = read_anonymous_kib(box.pid) if turn == 10 else pid1_kib
        with pytest.raises(Refused, match="run the command"):
            await run(box, ["nothing"])
        assert (await run(box, ["true"], env={"LONG": "x" * 70_000})).ended.exit_code == 0
    assert len(os.listdir("/proc/self/fd")) == before
    assert list_descendants(box.pid) == set()
    assert (await box.read_usage()).process_count == 0
    assert read_anonymous_kib(box.pid) <= pid1_kib + 16, "1,500 commands later"


def read_anonymous_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0])


async def test_the_root_is_reached_from_outside_without_following_a_link_out(box: Box) -> None:
    await shell_text(
        box, "echo inside > /tmp/file; ln -s /etc/hostname /tmp/link 2>/dev/null || cp /etc/hostname /tmp/link"
    )
    root = await box.open_root()
    try:
        fd = os.open("tmp/file", os.O_RDONLY, dir_fd=root)
        assert os.read(fd, 100) == b"inside\n"
        os.close(fd)
        fd = os.open("tmp/given", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=root)
        os.write(fd, b"outside\n")
        os.close(fd)
    finally:
        os.close(root)
    assert await shell_text(box, "cat /tmp/given; stat -c %u /tmp/given") == "outside\n0"


async def test_python_finds_itself_at_home(box: Box) -> None:
    code = """
import multiprocessing, os, subprocess, tempfile, threading
semaphore = multiprocessing.Semaphore(2)
child = multiprocessing.Process(target=semaphore.acquire)
child.start()
child.join()
thread = threading.Thread(target=semaphore.acquire)
thread.start()
thread.join()
assert not semaphore.acquire(block=False)
with tempfile.TemporaryDirectory() as folder:
    print(subprocess.check_output(["id", "-u"]).decode().strip(), os.path.dirname(folder))
"""
    assert await python(box, code) == "0 /tmp"


async def test_a_sandbox_that_is_closed_answers_nobody(scene: Scene, box: Box) -> None:
    waiting = asyncio.ensure_future(box.start(["sleep", "600"]).wait())
    await shell_text(box, "true")
    box.close()
    with pytest.raises(LinkLost):
        await waiting
    with pytest.raises(LinkLost):
        box.start(["true"])
    await asyncio.wait_for(box.gone, 20)
    await until(lambda: scene.zygote.box_count == 0)
