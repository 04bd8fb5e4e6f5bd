"""Fork and exec: errno kept, nothing inherited by mistake, and no exec that the caller has to wait for."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from keeper_rig import is_running, wait_for

from retinue.node import kernel
from retinue.node.spawn import Command, SpawnError, poll_exec, spawn, wait_exec

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue


def spawn_and_wait(command: Command) -> int:
    """Start it; the pid once the new program runs."""
    child = spawn(command)
    assert wait_exec(child)
    return child.pid


def run(command: Command) -> int:
    """Spawn and wait for the exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(spawn_and_wait(command), 0)[1])


@pytest.mark.parametrize(
    ("argv", "step", "number"),
    [
        (["no-such-program"], "exec", errno.ENOENT),
        (["/no/such/program"], "exec", errno.ENOENT),
        (["/etc/passwd"], "exec", errno.EACCES),
        (["/tmp"], "exec", errno.EACCES),
        (["with\0nul"], "exec", errno.EINVAL),
        ([], "exec", errno.EINVAL),
    ],
)
def test_what_cannot_be_executed_keeps_its_errno(argv: list[str], step: str, number: int) -> None:
    before = read_children()
    with pytest.raises(SpawnError) as caught:
        spawn_and_wait(Command(argv, ENV))
    assert (caught.value.step, caught.value.errno) == (step, number)
    assert read_children() <= before


def read_children() -> set[str]:
    """Children of this process, unreaped ones too; earlier tests of the same worker may have left some."""
    return {pid for thread in Path("/proc/self/task").iterdir() for pid in (thread / "children").read_text().split()}


def test_a_text_without_interpreter_line_is_not_given_to_a_shell(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("exit 0\n")
    script.chmod(0o755)
    with pytest.raises(SpawnError) as caught:
        spawn_and_wait(Command([str(script)], ENV))
    assert caught.value.errno == errno.ENOEXEC


def test_a_directory_that_is_not_there_is_told_apart_from_a_program_that_is_not() -> None:
    with pytest.raises(SpawnError) as caught:
        spawn_and_wait(Command(["true"], ENV, cwd="/no/such/directory"))
    assert (caught.value.step, caught.value.errno) == ("cwd", errno.ENOENT)


def test_the_path_of_the_new_environment_is_searched(tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\nexit 17\n")
    program.chmod(0o755)
    assert run(Command(["only-here"], {"PATH": f"/nowhere:{tmp_path}"})) == 17
    with pytest.raises(SpawnError):
        run(Command(["only-here"], ENV))


def test_a_path_entry_that_may_not_be_searched_hides_nothing_and_accuses_nobody(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert run(Command(["true"], {"PATH": f"{closed}:/usr/bin:/bin"})) == 0
    with pytest.raises(SpawnError) as caught:
        run(Command(["no-such-program"], {"PATH": f"{closed}:/usr/bin"}))
    assert caught.value.errno == errno.ENOENT


def test_an_exec_that_hangs_is_polled_and_never_waited_for(pipe: tuple[int, int]) -> None:
    read_fd, write_fd = pipe
    child = spawn(Command(["true"], ENV), steps=(("hang", lambda: os.read(read_fd, 1) and None),))
    assert poll_exec(child) is False
    assert wait_exec(child, 0.0) is False
    os.write(write_fd, b"x")
    assert wait_exec(child, 20.0) is True
    assert os.waitpid(child.pid, 0)[1] == 0


def test_a_child_that_runs_on_holds_no_descriptor_of_the_caller(pipe: tuple[int, int]) -> None:
    """A copy of a log pipe's write end would keep its reader waiting for ever."""
    read_fd, write_fd = pipe
    os.set_inheritable(write_fd, True)
    pid = spawn_and_wait(Command(["sleep", "100"], ENV))
    os.close(write_fd)
    try:
        assert os.read(read_fd, 1) == b""
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_only_what_is_named_is_inherited(pipe: tuple[int, int]) -> None:
    read_fd, write_fd = pipe
    os.set_inheritable(read_fd, True)  # As a careless library would.
    script = f"ls /proc/$$/fd; [ -e /proc/$$/fd/{write_fd} ] && [ ! -e /proc/$$/fd/{read_fd} ]"
    assert run(Command(["sh", "-c", script], ENV, keep_fds=(write_fd,))) == 0
    assert os.get_inheritable(write_fd) is False


def test_swapped_standard_descriptors_arrive_swapped(tmp_path: Path) -> None:
    code = (
        "import os\nfrom retinue.node.spawn import Command, spawn, wait_exec\n"
        "child = spawn(Command(['sh', '-c', 'echo out; echo err >&2'],"
        " {'PATH': '/usr/bin:/bin'}, stdout=2, stderr=1))\nwait_exec(child)\nos.waitpid(child.pid, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("err\n", "out\n")


def test_a_caller_without_standard_descriptors_can_spawn() -> None:
    code = (
        "import os\nfrom retinue.node.spawn import Command, SpawnError, spawn, wait_exec\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "child = spawn(Command(['true'], {'PATH': '/usr/bin:/bin'}))\n"
        "wait_exec(child)\n"
        "code = os.waitpid(child.pid, 0)[1]\n"
        "try: wait_exec(spawn(Command(['no-such'], {})))\n"
        "except SpawnError as error: os._exit(code or error.errno)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == errno.ENOENT


def test_the_childs_signals_are_as_if_nobody_had_touched_them() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    ignored = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        # 32 and 33 are glibc's own: a child of its posix_spawn (make is one) ignores them, and nobody can change it.
        script = "grep -E '^Sig(Blk|Ign)' /proc/self/status | grep -vqE '0000000[01][08]0000000$'"
        assert run(Command(["sh", "-c", script], ENV)) == 1  # No line has anything set.
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask | {signal.SIGUSR2}
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGTERM, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_a_child_without_session_of_its_own_stays_in_the_callers_group() -> None:
    script = "[ $(ps -o pgid= -p $$) = $0 ]"
    group = str(os.getpgrp())
    assert run(Command(["sh", "-c", script, group], ENV, new_session=False)) == 0
    assert run(Command(["sh", "-c", script, group], ENV)) == 1


def test_a_child_with_a_death_signal_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom retinue.node.spawn import Command, spawn, wait_exec\n"
        "child = spawn(Command(['sleep', '100'], {'PATH': '/usr/bin:/bin'}, pdeathsig=signal.SIGKILL))\n"
        "wait_exec(child)\n"
        "print(child.pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wait_for("the child to be gone", lambda: not is_running(int(done.stdout)))


def test_a_refused_fork_is_an_error_and_leaks_nothing() -> None:
    before = os.listdir("/proc/self/fd")

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "no pid")

    with pytest.raises(SpawnError) as caught:
        spawn(Command(["true"], ENV), fork=refuse)
    assert (caught.value.step, caught.value.errno) == ("fork", errno.EAGAIN)
    assert os.listdir("/proc/self/fd") == before


def test_a_pidfd_means_the_process_and_not_the_number() -> None:
    pid = spawn_and_wait(Command(["sleep", "100"], ENV))
    pidfd = kernel.open_pidfd(pid)
    assert kernel.read_pidfd_pid(pidfd) == pid
    kernel.signal_pidfd(pidfd, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert kernel.read_pidfd_pid(pidfd) == 0
    with pytest.raises(ProcessLookupError):
        kernel.signal_pidfd(pidfd, signal.SIGKILL)
    os.close(pidfd)
