"""Fork and exec, without ever waiting for the exec.

Used by stub, outer process and keeper. Standard library only. The child gets
exactly the descriptors that are named, default signal dispositions, an empty
signal mask and exactly the environment that is given. An exec that hangs (a
binary on a dead file system) hangs in the child; the caller polls a pipe.
"""

import errno
import fcntl
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retinue.errors import EdgeError
from retinue.node import kernel

HINTS = {
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "the machine has no descriptor left",
    errno.EAGAIN: "raise `ulimit -u`, or end some of your processes",
}
"""What a person can do about a shortage."""

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""What Slurm sends to all of a job's steps before its end, `sbatch --signal=USR1@60`: the trainer's to take."""

Step = tuple[str, Callable[[], None]]
"""(what it is called in errors, what the child does): work between fork and exec."""


@dataclass(frozen=True, slots=True)
class Command:
    """What is executed, and what it inherits."""

    argv: Sequence[str]
    """argv[0] without a slash is looked for in the PATH of `env`."""
    env: Mapping[str, str]
    """Complete; nothing is added."""
    cwd: str | None = None
    """None: the caller's."""
    stdin: int | None = None
    """None: /dev/null. The caller's own is 0."""
    stdout: int | None = None
    """None: /dev/null. The caller's own is 1."""
    stderr: int | None = None
    """None: /dev/null. The caller's own is 2."""
    keep_fds: tuple[int, ...] = ()
    """Inherited under the same number (3 or more); the caller's copies stay CLOEXEC."""
    new_session: bool = True
    pdeathsig: int | None = None
    """Sent to the child when the forking thread ends; the child never runs when that is already so."""
    ignored: tuple[int, ...] = ()
    """Signals that it ignores unless it wants them: `WARNINGS`."""
    blocked: tuple[int, ...] = ()
    """Signals that wait until the child is ready to take them; it unblocks them itself."""


@dataclass(frozen=True, slots=True)
class Child:
    """A forked child whose exec may still be under way."""

    pid: int
    status_fd: int
    """Readable when the exec succeeded or failed; `poll_exec` reads and closes it."""
    name: str
    """argv[0], for errors."""
    cwd: str = ""
    """For errors; empty: the caller's."""


class SpawnError(EdgeError):
    """Fork, a step between, or exec failed: nothing runs."""

    def __init__(self, name: str, step: str, number: int, cwd: str = "") -> None:
        self.step = step
        """`fork` | `session` | `cwd` | `exec` | `descriptors` | `parent` | the name of a caller's step."""
        self.errno = number
        where = "" if step == "exec" else f" in directory {cwd!r}" if step == "cwd" else f" ({step})"
        hint = f"; {HINTS[number]}" if number in HINTS else ""
        super().__init__(f"cannot start {name!r}{where}: {os.strerror(number)}{hint}")


def spawn(command: Command, fork: Callable[[], int] = os.fork, steps: Sequence[Step] = ()) -> Child:
    """Fork and begin to exec; never waits for the exec.

    Errors: SpawnError when not even the fork succeeded (pids or memory are short), or no pipe could be made.
            What fails in the child is told by `poll_exec`; its pid is then a child that the caller reaps.
    """
    name = command.argv[0] if command.argv else ""
    parent = os.getpid()
    try:
        read_fd, status_fd = _build_status_pipe()
    except OSError as error:
        raise SpawnError(name, "fork", error.errno or 0) from None
    # A signal between fork and exec would run the caller's handler in the child (and write to its wakeup fd).
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = fork()
        if pid == 0:
            _become(command, parent, status_fd, steps)
    except OSError as error:
        os.close(read_fd)
        raise SpawnError(name, "fork", error.errno or 0) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(status_fd)
    return Child(pid, read_fd, name, command.cwd or "")


def poll_exec(child: Child) -> bool:
    """Say whether the exec succeeded (True) or is still under way (False).

    Once True or an error was given the status descriptor is closed: do not ask again.
    Errors: SpawnError with the step and its errno; the child then exits 127 by itself.
    """
    try:
        message = os.read(child.status_fd, 512)
    except BlockingIOError:
        return False
    os.close(child.status_fd)
    if not message:
        return True
    step, _, number = message.decode().partition("\0")
    raise SpawnError(child.name, step, int(number), child.cwd)


def wait_exec(child: Child, timeout_s: float | None = None) -> bool:
    """Wait until the exec is settled; False when it still hangs after the timeout.

    Errors: SpawnError as `poll_exec`, the child already reaped.
    """
    poller = select.poll()
    poller.register(child.status_fd, select.POLLIN)
    if not poller.poll(None if timeout_s is None else timeout_s * 1000):
        return False
    try:
        return poll_exec(child)
    except SpawnError:
        os.waitpid(child.pid, 0)
        raise


def _build_status_pipe() -> tuple[int, int]:
    """A CLOEXEC pipe whose ends are both above the standard descriptors."""
    ends: list[int] = []
    low = os.pipe()
    try:
        ends.extend(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in low)
    except OSError:
        for fd in ends:
            os.close(fd)
        raise
    finally:
        for fd in low:
            os.close(fd)
    os.set_blocking(ends[0], False)
    return ends[0], ends[1]


def _become(command: Command, parent: int, status_fd: int, steps: Sequence[Step]) -> None:
    """Turn the forked child into the command; never returns."""
    step, number = "signals", errno.EINVAL
    try:
        _reset_signals()
        for each in command.ignored:
            signal.signal(each, signal.SIG_IGN)
        step = "session"
        if command.new_session:
            os.setsid()
        step = "parent"
        if command.pdeathsig is not None:
            kernel.set_death_signal(command.pdeathsig)
            if os.getppid() != parent:  # It died before the line above: no signal will ever come.
                raise ProcessLookupError(errno.ESRCH, "parent is gone")
        for step, do in steps:  # noqa: B007 - the name is for the error
            do()
        step = "descriptors"
        _place_descriptors(command, status_fd)
        step = "cwd"
        if command.cwd is not None:
            os.chdir(command.cwd)
        step = "exec"
        signal.pthread_sigmask(signal.SIG_SETMASK, command.blocked)
        _execute(list(command.argv), dict(command.env))
    except OSError as error:
        number = error.errno or errno.EIO
    finally:
        # Whatever went wrong (a NUL in argv is a ValueError): the child must not live on as a second caller.
        os.write(status_fd, f"{step}\0{number}".encode())
        os._exit(127)


def _reset_signals() -> None:
    """Undo the caller's handlers; Python itself ignores SIGPIPE, which a program must not inherit."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)


def _place_descriptors(command: Command, status_fd: int) -> None:
    """Put the standard descriptors in place, keep what is named, close the rest now and not at exec.

    A child that hangs in exec would else hold copies of the caller's sockets and pipes.
    """
    null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    wanted = [null_fd if fd is None else fd for fd in (command.stdin, command.stdout, command.stderr)]
    # Moved out of the way first, so that no dup2 overwrites a source of the next one.
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in wanted]
    for target, fd in enumerate(moved):
        os.dup2(fd, target)
    if any(fd < 3 for fd in command.keep_fds):
        raise OSError(errno.EBADF, "a kept descriptor is below 3")
    kernel.close_all_fds_but({status_fd, *command.keep_fds})
    for fd in command.keep_fds:
        os.set_inheritable(fd, True)


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Exec, looking in the PATH of the new environment as execvp(3) does; returns only by raising.

    Unlike execvp a directory of PATH that may not be searched does not turn "not found" into "permission denied".
    """
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    refused: OSError = FileNotFoundError(errno.ENOENT, "not in PATH")
    for directory in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, argv[0])
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            if os.path.exists(path):
                refused = error
    raise refused
