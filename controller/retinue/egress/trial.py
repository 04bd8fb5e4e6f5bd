"""Whether this node can guard services at all: what is known of it, then one real call of one real child."""

import ctypes
import errno
import os
import select
import signal
import socket
import struct

from retinue.egress import notify
from retinue.egress import numbers as n
from retinue.egress.addresses import parse_place
from retinue.egress.caller import Callers, read_memory
from retinue.egress.handover import Handover
from retinue.errors import PermanentError
from retinue.node.kernel import close_all_fds_but, open_pidfd
from retinue.node.spawn import Command, SpawnError, spawn

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_SIZES = struct.Struct("=HHH")
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PATIENCE_S = 5.0
_KILL_S = 1.0
_PORT = 9
_NOT_DENIED = 200
"""Exit code of a child that was not refused; below it: an errno."""


class _TrialError(PermanentError):
    """The trial went wrong; the message is why."""


def find_machine() -> n.Machine | None:
    return n.MACHINES.get(os.uname().machine)


def find_known_obstacle(has_namespace: bool) -> str:
    """Say why the guard cannot work here, without trying it; empty when nothing is known against it."""
    machine = find_machine()
    if machine is None:
        return f"the guard does not know {os.uname().machine} machines"
    scope = _read_ptrace_scope()
    if scope > 2:
        return f"kernel.yama.ptrace_scope is {scope}: nobody may look at another process"
    if scope > 0 and not has_namespace:
        return f"kernel.yama.ptrace_scope is {scope} and the node has no namespace of its own"
    sizes = ctypes.create_string_buffer(_SIZES.size)
    number = ctypes.c_long(machine.seccomp)
    if _LIBC.syscall(number, ctypes.c_long(n.GET_NOTIF_SIZES), ctypes.c_long(0), sizes) < 0:
        return f"the kernel has no seccomp notifications ({os.strerror(ctypes.get_errno())})"
    if _SIZES.unpack(sizes.raw)[:2] != (n.NOTIF_BYTES, n.RESPONSE_BYTES):
        return "the kernel's seccomp notifications have another form"
    return ""


def find_obstacle(has_namespace: bool) -> str:
    """Try the guard on a child of the caller; say why it does not work, empty when it does.

    Shape: the caller has no other thread.
    Units: a few milliseconds; at most 11 s, and then a child may be left that hangs in the kernel (seen: one that
           waited for memory for its filter, for ever).
    """
    known = find_known_obstacle(has_namespace)
    machine = find_machine()
    if known or machine is None:
        return known
    handover = Handover(machine, "none")
    try:
        child = spawn(Command(argv=("egress-trial",), env={}), steps=(("egress trial", lambda: _call(handover)),))
    except SpawnError as error:
        handover.close()
        return str(error)
    handover.forked()
    os.close(child.status_fd)
    pidfd = open_pidfd(child.pid)
    try:
        _refuse_one(handover, child.pid, pidfd)
        return _read_end(child.pid, pidfd)
    except _TrialError as error:
        return str(error)
    except OSError as error:
        return f"a child's call cannot be looked at: {os.strerror(error.errno or 0)}"
    finally:
        handover.close()
        _end(child.pid, pidfd)


def _call(handover: Handover) -> None:
    """In the child: the exit code is the errno of the first step that failed otherwise than it should."""
    code = _NOT_DENIED
    try:
        close_all_fds_but({handover.child_end, handover.fileno()})
        handover.install()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as end:
            end.connect(("127.0.0.1", _PORT))
    except OSError as error:
        code = 0 if error.errno == errno.EACCES else error.errno or _NOT_DENIED
    finally:
        os._exit(code)


def _refuse_one(handover: Handover, pid: int, pidfd: int) -> None:
    _wait(handover.fileno(), "a child does not get its filter")
    listener = handover.take(pid)
    if listener is None:
        raise _TrialError(_read_end(pid, pidfd) or "a child cannot install a filter")
    slate_fd = notify.build_slate()
    try:
        _wait(listener, "a child's call is not heard of")
        slate = notify.Slate(slate_fd)
        notice = notify.receive(listener, 1, slate)
        if notice is None:
            raise _TrialError("a child's call is not heard of")
        place = parse_place(read_memory(notice.tid, notice.arguments[1], 16), n.AF_INET)
        os.close(Callers().take_descriptor(notice.tid, notice.arguments[0]))
        if place is None or place.port != _PORT or not notify.is_waiting(listener, notice):
            raise _TrialError("a child's call is not what it was")
        notify.answer_errno(listener, notice, errno.EACCES)
    finally:
        os.close(slate_fd)
        os.close(listener)


def _wait(fd: int, otherwise: str) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    if not poller.poll(_PATIENCE_S * 1000):
        raise _TrialError(otherwise)


def _read_end(pid: int, pidfd: int) -> str:
    """Say what the child's exit code means; empty when it was refused as it should."""
    _wait(pidfd, "a child hangs in its call")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == errno.EBUSY:
        return "another program already listens to the seccomp notifications here (a container runtime?)"
    if code == _NOT_DENIED or code < 0:
        return "a child was not refused what it should be"
    return f"a child cannot install a filter: {os.strerror(code)}" if code else ""


def _end(pid: int, pidfd: int) -> None:
    """See the child dead. One that hangs in the kernel is left to whoever reaps the caller's children."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if poller.poll(_KILL_S * 1000):
                os.waitpid(pid, 0)
    except ChildProcessError:  # Reaped already.
        return
    finally:
        os.close(pidfd)


def _read_ptrace_scope() -> int:
    """0 where there is no Yama."""
    try:
        with open(_YAMA, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
