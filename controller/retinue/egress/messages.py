"""The addresses in struct msghdr and struct mmsghdr of a caller's memory. Source: sendmsg(2), sendmmsg(2)."""

import struct

from retinue.egress.addresses import SOCKADDR_MAX
from retinue.egress.caller import read_memory

_HEADER = struct.Struct("=QI4x")
"""msg_name and msg_namelen; what follows is not looked at."""
_MSGHDR_BYTES, _MMSGHDR_BYTES = 56, 64
_COUNT_MAX = 1024
"""UIO_MAXIOV: the kernel sends no more at once."""


def read_names(tid: int, address: int, count: int, is_many: bool) -> list[bytes]:
    """Read the addresses of all messages; those without one go where the socket is connected to.

    Errors: OSError EFAULT as the kernel's own call.
    """
    step = _MMSGHDR_BYTES if is_many else _MSGHDR_BYTES
    raw = read_memory(tid, address, step * min(count, _COUNT_MAX))
    names = []
    for at in range(0, len(raw), step):
        name, size = _HEADER.unpack_from(raw, at)
        if name and size:
            # The kernel cuts a longer one off, too.
            names.append(read_memory(tid, name, min(size, SOCKADDR_MAX)))
    return names
