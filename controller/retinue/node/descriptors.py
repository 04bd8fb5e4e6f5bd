"""Packets with descriptors beside them, over an AF_UNIX SOCK_SEQPACKET socketpair.

Used by keeper, agent and outer process. One record per packet; whatever may be
long travels in a memfd, so that no packet nears the socket's size limit. A
received descriptor is CLOEXEC and belongs to the receiver, who closes it.
"""

import fcntl
import os
import socket
from array import array
from typing import Any, TypeVar

from retinue.terms.record import DecodeError, from_json, to_json

T = TypeVar("T")

PACKET_BYTES = 192 * 1024
"""Below the default socket buffer (212,992 bytes); an inventory of 1,000 incarnations fits."""
_FDS_PER_PACKET = 253
"""SCM_MAX_FD, unix(7)."""
_F_ADD_SEALS = 1033
_SEALS = 0x0001 | 0x0002 | 0x0004 | 0x0008
"""F_SEAL_SEAL, SHRINK, GROW, WRITE: what was checked cannot change afterwards."""
_BODY_BYTES = 16 * 1024 * 1024


def build_pair() -> tuple[socket.socket, socket.socket]:
    """Make the two ends; both CLOEXEC and blocking."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send_packet(end: socket.socket, record: Any, fds: tuple[int, ...] = ()) -> None:
    """Send one record and copies of these descriptors.

    Errors: BlockingIOError when the end does not block and the peer does not read; BrokenPipeError when it is gone.
    """
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
    end.sendmsg([to_json(record)], rights, socket.MSG_NOSIGNAL)


def receive_packet(end: socket.socket, kind: Any) -> tuple[Any, list[int]] | None:
    """Receive one record of this (union of) kind and its descriptors; None at end of file.

    Errors: BlockingIOError when nothing is there; DecodeError when it is no such record (descriptors are closed).
    """
    try:
        packet, ancillary, flags, _ = _receive(end)
    except ConnectionResetError:
        # The peer died with packets of ours unread. Told once, before what it had sent itself, which is still there.
        packet, ancillary, flags, _ = _receive(end)
    fds = _collect_fds(ancillary)
    if not packet and not fds:
        return None
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise DecodeError("packet was cut off")
        return from_json(packet, kind), fds
    except DecodeError:
        close_fds(fds)
        raise


def _receive(end: socket.socket) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
    return end.recvmsg(PACKET_BYTES, socket.CMSG_SPACE(_FDS_PER_PACKET * 4), socket.MSG_CMSG_CLOEXEC)


def _collect_fds(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds.tolist()


def write_body(record: Any) -> int:
    """Put a record of any length into a sealed memfd; the caller closes it."""
    body = to_json(record)
    is_memfd = hasattr(os, "memfd_create")
    if not is_memfd:  # A Python built against an old glibc: a file without a name does as well.
        fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    else:
        fd = os.memfd_create("retinue-body", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    left = memoryview(body)
    while left:
        left = left[os.write(fd, left) :]
    if is_memfd:
        fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
    return fd


def read_body(fd: int, kind: type[T]) -> T:
    """Read a record from a memfd, whatever its file position; does not close it.

    Errors: DecodeError when it is too long or no such record; OSError when it is no file.
    """
    size = os.fstat(fd).st_size
    if size > _BODY_BYTES:
        raise DecodeError(f"body has {size} bytes, more than {_BODY_BYTES}")
    pieces: list[bytes] = []
    offset = 0
    while piece := os.pread(fd, size - offset, offset):
        pieces.append(piece)
        offset += len(piece)
    return from_json(b"".join(pieces), kind)


def close_fds(fds: list[int] | tuple[int, ...]) -> None:
    """Close all; one that is already closed is a bug and raises."""
    for fd in fds:
        os.close(fd)
