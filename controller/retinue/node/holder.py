"""Who holds a TCP port of this host, as far as an ordinary user can tell."""

import os
import pwd
from dataclasses import dataclass

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket of /proc/net/tcp."""

    uid: int
    inode: int


def find_holder(port: int) -> str:
    """Name the process that listens on this port, else its user, else say that nobody can tell.

    A socket that is bound but does not listen, or a connection that has this number as its own end, is in no
    table with an owner's name: the answer is then `unknown`.
    """
    listeners = _read_listeners(port)
    for listener in listeners:
        pid = _find_pid(listener.inode)
        if pid:
            return f"pid {pid} ({_read_name(pid)}) of {_name_user(listener.uid)}"
    if listeners:
        return f"a process of {_name_user(listeners[0].uid)}"
    return "unknown (nothing listens there: bound only, or a connection's own end)"


def _read_listeners(port: int) -> list[Listener]:
    found = []
    for table in _TABLES:
        try:
            with open(table, encoding="ascii") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.append(Listener(int(fields[7]), int(fields[9])))
    return found


def _find_pid(inode: int) -> int:
    for name in os.listdir("/proc"):
        if name.isdigit() and _has_socket(name, f"socket:[{inode}]"):
            return int(name)
    return 0


def _has_socket(pid: str, link: str) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == link for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # Gone, or another user's.
        return False


def _read_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "gone"


def _name_user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
