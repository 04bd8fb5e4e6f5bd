"""Who answers on a port: the listening socket must belong to the replica's tree.

Reads /proc/net/tcp, /proc/net/tcp6 and /proc/PID/fd. A stranger's 200 on our
port is not healthy (facts/slurm.md, "Addresses, ports, environment"). Standard
library only: the outer process asks for the host who holds a port.
"""

import ipaddress
import os
import pwd
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from retinue.node.scan import list_pids, read_process

LISTEN = "0A"
"""TCP_LISTEN in the `st` column, proc_net_tcp(5)."""


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening TCP socket."""

    address: str
    """As text; IPv4-mapped addresses are written as IPv4."""
    inode: int
    uid: int


@dataclass(frozen=True, slots=True)
class Holder:
    """A descriptor of a process of the tree that is the listening socket."""

    pid: int
    fd: int
    inode: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """The answer to: is it our replica that listens here?"""

    holder: Holder | None
    """Set: yes, this one."""
    cause: str = ""
    """Why not, in words."""
    is_unreadable: bool = False
    """Some process of the tree hides its descriptors (not dumpable); nobody else was found either."""


def parse_listeners(text: str, port: int) -> list[Listener]:
    """Parse one /proc/net/tcp or tcp6 table; only the listeners of this port."""
    wanted = f":{port:04X}"
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTEN and fields[1].endswith(wanted):
            address = _parse_address(fields[1].partition(":")[0])
            found.append(Listener(address, inode=int(fields[9]), uid=int(fields[7])))
    return found


def read_listeners(port: int) -> list[Listener]:
    """Read all listeners of a port in this network namespace."""
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="ascii") as table:
                found += parse_listeners(table.read(), port)
        except OSError:  # a kernel without IPv6 has no tcp6
            continue
    return found


def find_answering(listeners: list[Listener], address: str) -> list[Listener]:
    """Pick the sockets the kernel would hand a connection to this address: exact ones before wildcards."""
    exact = [item for item in listeners if item.address == address]
    if exact:
        return exact
    wildcards = ("0.0.0.0", "::") if ":" not in address else ("::",)
    for wildcard in wildcards:
        chosen = [item for item in listeners if item.address == wildcard]
        if chosen:
            return chosen
    return []


def find_owner(port: int, address: str, pids: Iterable[int]) -> Ownership:
    """Find which process of the tree listens where a connection to address:port arrives."""
    answering = find_answering(read_listeners(port), address)
    if not answering:
        return Ownership(None, f"port {port} on {address} is not listened on any more")
    tree = list(pids)
    is_hidden = False
    for item in answering:
        holder, hidden = find_holder(item.inode, tree)
        is_hidden = is_hidden or hidden
        if holder is not None:
            return Ownership(holder)
    stranger = find_stranger(answering[0].inode, set(tree))
    if stranger is None and is_hidden and answering[0].uid == os.geteuid():
        return Ownership(None, is_unreadable=True)
    who = f"pid {stranger}" if stranger else f"a process of uid {answering[0].uid} that we cannot see"
    return Ownership(None, f"port {port} is answered by {who} (not ours)")


def find_holder(inode: int, pids: Iterable[int]) -> tuple[Holder | None, bool]:
    """Find the descriptor that is this socket; also whether some process could not be read."""
    is_hidden = False
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            is_hidden = is_hidden or has_memory(pid)
            continue
        except OSError:
            continue
        for name in names:
            holder = Holder(pid, int(name), inode)
            if is_still_held(holder):
                return holder, is_hidden
    return None, is_hidden


def has_memory(pid: int) -> bool:
    """Say whether a process still has an address space.

    One that is exiting has none, and its descriptors cannot be listed either: it hides nothing, and listens to nothing.
    """
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return file.read(2) != "0 "
    except OSError:
        return False


def is_still_held(holder: Holder) -> bool:
    """Say whether that descriptor is still that socket: one readlink, cheap enough for every probe."""
    try:
        return os.readlink(f"/proc/{holder.pid}/fd/{holder.fd}") == f"socket:[{holder.inode}]"
    except OSError:
        return False


def find_stranger(inode: int, tree: set[int]) -> int | None:
    """Find a process outside the tree that has this socket, as far as we may look."""
    holder, _ = find_holder(inode, [pid for pid in list_pids() if pid not in tree])
    return holder.pid if holder else None


def describe_holder(port: int) -> str:
    """Name the process that listens on this port, else its user, else say that nobody can tell.

    A socket that is bound but does not listen, or a connection that has this number as its own end, is in no
    table with an owner's name: the answer is then `unknown`.
    """
    listeners = read_listeners(port)
    for item in listeners:
        pid = find_stranger(item.inode, set())
        if pid is not None:
            process = read_process(pid)
            return f"pid {pid} ({process.name if process else 'gone'}) of {_name_user(item.uid)}"
    if listeners:
        return f"a process of {_name_user(listeners[0].uid)}"
    return "unknown (nothing listens there: bound only, or a connection's own end)"


def _name_user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


def _parse_address(digits: str) -> str:
    """Turn the kernel's hexadecimal words (host byte order) into text."""
    raw = bytes.fromhex(digits)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
