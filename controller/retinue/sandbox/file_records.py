"""What is said about a sandbox's files, and how much may be passed on at once. Pure."""

import base64
import os
import stat

from retinue.terms.record import Record

READ_MAX_BYTES = 32 * 2**20
"""Of one read, and of one write; below what a frame between front and shard may hold."""
LIST_MAX = 100_000
NAMES_MAX = 3
"""How many of the entries that were left out are named."""

_TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class Entry(Record, frozen=True):
    """One file, directory, link or what else has a name."""

    name: str
    """The last part of its path; bytes that are no UTF-8 are shown as U+FFFD."""
    type: str
    """`file` | `directory` | `link` | `fifo` | `socket` | `device`."""
    size: int
    mode: int
    """Permission bits, with set-id and sticky."""
    mtime: float
    """Seconds since 1970."""
    target: str = ""
    """What a link says, whether or not there is anything."""
    name_base64: str = ""
    """The exact bytes of a name that is no UTF-8."""


class TransferLimits(Record, frozen=True):
    """How much one archive may hold, and how long it may take."""

    bytes: int = 64 * 2**30
    """Of all files together, holes included."""
    entries: int = 1_000_000
    time_s: float = 3600.0
    step_s: float = 60.0
    """For one piece of it, 64 KiB or so: a disk that hangs is found out sooner than the whole is late."""


class Uploaded(Record, frozen=True, omit_defaults=False):
    """What was unpacked."""

    files: int
    directories: int
    links: int
    """Symbolic and hard."""
    bytes: int
    skipped: int
    """Devices and FIFOs, which are never made."""
    skipped_names: list[str]
    """The first few of them."""


class Downloaded(Record, frozen=True, omit_defaults=False):
    """What was packed."""

    files: int
    directories: int
    links: int
    bytes: int
    skipped: int
    """FIFOs, sockets, devices, mounts, what may not be read, and what was gone before it was opened."""
    skipped_names: list[str]
    """The first few of them."""
    changed: int
    """Files that shrank while they were read: what was missing is zeros."""


def build_entry(name: bytes, status: os.stat_result, target: bytes = b"") -> Entry:
    """Build an entry from what lstat says."""
    try:
        text, coded = name.decode(), ""
    except UnicodeDecodeError:
        text, coded = name.decode(errors="replace"), base64.b64encode(name).decode()
    return Entry(
        text,
        _TYPES.get(stat.S_IFMT(status.st_mode), "device"),
        status.st_size,
        stat.S_IMODE(status.st_mode),
        status.st_mtime,
        target.decode(errors="replace"),
        coded,
    )
