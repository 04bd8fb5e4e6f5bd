"""The node's namespaces: user, pid, mount and ipc, with the keeper as their pid 1.

Whatever is started below the keeper, escapees included, is ended by the kernel
when the keeper ends. All or nothing: a pid namespace over the host's /proc is
never made; when one step is refused, nothing of it is left and the reason is said.
"""

import os
import select
import signal
from dataclasses import dataclass

from retinue.errors import PermanentError
from retinue.node import kernel
from retinue.node.spawn import Child, Command, SpawnError, Step, spawn, wait_exec

_FLAGS = kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC
_STEP_TIMEOUT_S = 60.0
"""Until the new program must run; a cold shared file system may take long to read an interpreter."""


class NamespaceRefused(PermanentError):
    """The kernel or the site does not let us; the message is the reason in words."""


@dataclass(frozen=True, slots=True)
class _Gate:
    """A pipe on which the child waits until its ids are mapped, and on which it sees its parent die."""

    read_fd: int
    write_fd: int


def spawn_in_namespace(command: Command) -> Child:
    """Start a command as pid 1 of new namespaces; its exec has succeeded, or still hangs after 60 s.

    The command gets SIGKILL when the caller's thread ends. The child's pid is the caller's view of it.
    Errors: NamespaceRefused says which step was refused and why; SpawnError when the command itself cannot run.
    """
    gate = _Gate(*os.pipe())
    try:
        child = _clone(command, gate)
        try:
            _map_ids(child.pid)
        except OSError as error:
            _abandon(child)
            raise NamespaceRefused(f"no user namespace: cannot map ids: {error.strerror}") from None
        os.write(gate.write_fd, b"g")
        _wait_for_exec(child)
    finally:
        os.close(gate.read_fd)
        os.close(gate.write_fd)
    return child


def _clone(command: Command, gate: _Gate) -> Child:
    try:
        return spawn(command, fork=lambda: kernel.clone_process(_FLAGS), steps=_build_steps(gate))
    except SpawnError as error:
        raise NamespaceRefused(f"{_name_refused_namespace()}: {os.strerror(error.errno)}") from None


def _name_refused_namespace() -> str:
    """Find out whether the user namespace was refused, or what comes with it."""
    try:
        pid = kernel.clone_process(kernel.CLONE_NEWUSER)
    except OSError:
        return "no user namespace (user.max_user_namespaces, a container's seccomp filter)"
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "no pid, mount or ipc namespace"


def _map_ids(pid: int) -> None:
    """Map ids to themselves: root all that it has, anyone else the own one (all that the kernel allows).

    Source: user_namespaces(7), "Defining user and group ID mappings".
    """
    if os.geteuid() == 0 and _map_all_ids(pid):
        return
    _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", f"{os.geteuid()} {os.geteuid()} 1")
    _write(f"/proc/{pid}/gid_map", f"{os.getegid()} {os.getegid()} 1")


def _map_all_ids(pid: int) -> bool:
    """False when this root may not (a container without CAP_SETUID); nothing is written then."""
    try:
        for name in ("gid_map", "uid_map"):
            with open(f"/proc/self/{name}", encoding="ascii") as lines:
                ranges = [line.split() for line in lines]
            _write(f"/proc/{pid}/{name}", "".join(f"{inside} {inside} {count}\n" for inside, _, count in ranges))
    except OSError:
        return False
    return True


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _wait_for_exec(child: Child) -> None:
    try:
        wait_exec(child, _STEP_TIMEOUT_S)
    except SpawnError as error:
        if error.step in ("exec", "cwd", "descriptors"):
            raise
        raise NamespaceRefused(f"no {error.step}: {os.strerror(error.errno)}") from None


def _abandon(child: Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    os.close(child.status_fd)


# --- in the child -----------------------------------------------------------------------------


def _build_steps(gate: _Gate) -> tuple[Step, ...]:
    """What the child does before exec; while it is not dumpable-reset by exec it does as little as it can."""
    shm_bytes = _read_shm_bytes()
    return (
        ("parent to wait for", lambda: _pass_gate(gate)),
        ("private mount table", lambda: kernel.mount(None, "/", kernel.MS_REC | kernel.MS_SLAVE)),
        ("fresh /proc", _mount_proc),
        ("own /dev/shm", lambda: _mount_shm(shm_bytes)),
        ("own /dev/mqueue", _mount_mqueue),
        ("right to trace", _keep_right_to_trace),
    )


def _pass_gate(gate: _Gate) -> None:
    os.close(gate.write_fd)
    kernel.set_death_signal(signal.SIGKILL)
    mapped = os.read(gate.read_fd, 1)
    # getppid() is 0 from here whoever lives. A parent that died before the line above sends no signal
    # any more, but its end of the pipe is closed.
    poller = select.poll()
    poller.register(gate.read_fd, select.POLLIN)
    if not mapped or poller.poll(0):
        raise ProcessLookupError(3, "parent is gone")


def _mount_proc() -> None:
    kernel.mount("proc", "/proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)


def _keep_right_to_trace() -> None:
    """Let the keeper look into its services though Yama, or a service that is not dumpable, is against it.

    A site that forbids it (securebits) has a weaker guard, and the guard's own trial says so.
    """
    try:
        kernel.keep_capability(kernel.CAP_SYS_PTRACE)
    except OSError:
        return


def _read_shm_bytes() -> int:
    """Size of the host's /dev/shm; 0 when it has none."""
    try:
        facts = os.statvfs("/dev/shm")
    except OSError:
        return 0
    return facts.f_blocks * facts.f_frsize if os.path.ismount("/dev/shm") else 0


def _mount_shm(size_bytes: int) -> None:
    if size_bytes:
        kernel.mount("tmpfs", "/dev/shm", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={size_bytes},mode=1777")


def _mount_mqueue() -> None:
    if os.path.isdir("/dev/mqueue"):
        kernel.mount("mqueue", "/dev/mqueue", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
