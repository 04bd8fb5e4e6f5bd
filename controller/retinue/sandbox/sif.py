"""What is in an image file: where its squashfs starts, and whether its header can be true. Reads a few KiB.

Trusts no number of the file: every offset and size is compared with what the file holds. Never reads what a
squashfs contains; that is for squashfuse, in a process of its own.
Source: SIF as Apptainer 1.4.5 writes it (sif v2); squashfs 4.0, fs/squashfs/squashfs_fs.h.
"""

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from retinue.sandbox.image_errors import GIVE, ImageRefused, Reason

_SIF_HEADER = struct.Struct("<32s10s3s3s16s8q")
_SIF_DESCRIPTOR = struct.Struct("<i?3I3q4q128s384s")
_SIF_PARTITION = struct.Struct("<ii3s")
_SIF_MAGIC = b"SIF_MAGIC\0"
_SIF_VERSION = b"01\0"
_SIF_DESCRIPTORS_MAX = 4096
"""Apptainer writes 48; a table of more than this is no table."""
_PARTITION_TYPE = 0x4004
_PRIMARY = 2
_SQUASHFS = 1
_FILE_SYSTEMS = {2: "ext3", 3: "an archive", 4: "raw data", 5: "encrypted squashfs", 6: "gocryptfs squashfs"}
_MACHINES = {"i386": b"01", "i686": b"01", "x86_64": b"02", "aarch64": b"04", "ppc64le": b"06", "s390x": b"11"}
_ANY_MACHINE = b"00"

_SUPERBLOCK = struct.Struct("<5I6H8Q")
_MAGIC = 0x73717368
_SWAPPED_MAGIC = 0x68737173
_ABSENT = 2**64 - 1
_COMPRESSIONS = range(1, 7)
"""gzip, lzma, lzo, xz, lz4, zstd."""


@dataclass(frozen=True, slots=True)
class Content:
    """Where the squashfs of an image file is."""

    offset_bytes: int
    size_bytes: int
    head: bytes
    """Headers that tell this file from another: the SIF header (it has a UUID) and the superblock."""


class _Reader:
    """Reads a file whose size is known, and refuses in its name."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name
        self.size_bytes = os.fstat(fd).st_size

    def read(self, offset: int, count: int, what: str) -> bytes:
        """Read exactly so many bytes. Errors: ImageRefused when the file ends before; OSError."""
        if offset < 0 or offset + count > self.size_bytes:
            self.refuse(Reason.DAMAGED, f"its {what} is outside the file of {self.size_bytes} bytes")
        data = os.pread(self.fd, count, offset)
        if len(data) < count:
            self.refuse(Reason.DAMAGED, f"it ends in its {what}")
        return data

    def refuse(self, reason: Reason, cause: str, hint: str = "") -> NoReturn:
        hint = hint or {Reason.DAMAGED: "copy or build it again"}.get(reason, GIVE)
        raise ImageRefused(reason, f"cannot use image {self.name!r}: {cause}; {hint}")


def read_content(fd: int, name: str, machine: str = "") -> Content:
    """Find the squashfs in an open file: in a SIF file, or the file itself.

    Shape:  machine is what uname(2) calls the hardware; empty: this one.
    Errors: ImageRefused says what is wrong with the image `name`; OSError as the file system says.
    """
    reader = _Reader(fd, name)
    head = os.pread(fd, _SIF_HEADER.size, 0)
    if head[32:42] == _SIF_MAGIC:
        offset, size = _find_partition(reader, machine or os.uname().machine)
        superblock = reader.read(offset, _SUPERBLOCK.size, "squashfs")
        _check_superblock(reader, superblock, size)
        return Content(offset, size, head + superblock)
    if head[:4] not in (b"hsqs", b"sqsh"):
        cause = "it is empty" if not head else "it is neither SIF nor squashfs"
        reader.refuse(Reason.NOT_AN_IMAGE, cause)
    superblock = reader.read(0, _SUPERBLOCK.size, "squashfs header")
    _check_superblock(reader, superblock, reader.size_bytes)
    return Content(0, reader.size_bytes, superblock)


def _find_partition(reader: _Reader, machine: str) -> tuple[int, int]:
    header = _SIF_HEADER.unpack(reader.read(0, _SIF_HEADER.size, "SIF header"))
    version, total, table, table_bytes = header[2], header[8], header[9], header[10]
    if version != _SIF_VERSION:
        reader.refuse(Reason.UNSUPPORTED, f"it is SIF version {version!r}", "convert it with a current Apptainer")
    if not 0 < total <= _SIF_DESCRIPTORS_MAX or table_bytes < total * _SIF_DESCRIPTOR.size:
        reader.refuse(Reason.DAMAGED, f"its table of {total} descriptors in {table_bytes} bytes cannot be")
    descriptors = reader.read(table, total * _SIF_DESCRIPTOR.size, "descriptor table")
    primary = [found for found in map(_read_primary, _SIF_DESCRIPTOR.iter_unpack(descriptors)) if found]
    if len(primary) != 1:
        reader.refuse(Reason.DAMAGED, f"it has {len(primary)} primary partitions, not one")
    file_system, arch, offset, size = primary[0]
    if file_system != _SQUASHFS:
        what = _FILE_SYSTEMS.get(file_system, f"of type {file_system}")
        reader.refuse(Reason.UNSUPPORTED, f"its root file system is {what}", "build it with squashfs, unencrypted")
    if arch not in (_ANY_MACHINE, _MACHINES.get(machine, arch)):
        reader.refuse(Reason.UNSUPPORTED, f"it is for another machine (SIF code {arch.decode(errors='replace')})")
    if offset < _SIF_HEADER.size or size <= 0 or offset + size > reader.size_bytes:
        reader.refuse(
            Reason.DAMAGED, f"its squashfs ({offset}+{size}) is outside the file of {reader.size_bytes} bytes"
        )
    return offset, size


def _read_primary(fields: tuple[int | bytes, ...]) -> tuple[int, bytes, int, int] | None:
    kind, is_used, offset, size, extra = fields[0], fields[1], fields[5], fields[6], fields[13]
    if kind != _PARTITION_TYPE or not is_used or not isinstance(extra, bytes):
        return None
    file_system, part, arch = _SIF_PARTITION.unpack_from(extra)
    return (file_system, arch[:2], int(offset), int(size)) if part == _PRIMARY else None


def _check_superblock(reader: _Reader, data: bytes, room_bytes: int) -> None:
    """Refuse a superblock that cannot be true, before a program in C has to believe it."""
    magic, _, _, block, _, compression, block_log, _, ids, major, minor, *places = _SUPERBLOCK.unpack(data)
    root, used, id_table, xattr_table, inodes, directories, fragments, exports = places
    if magic == _SWAPPED_MAGIC or (magic == _MAGIC and (major, minor) != (4, 0)):
        reader.refuse(Reason.UNSUPPORTED, "it is squashfs of before 2009", "pack it again with mksquashfs")
    if magic != _MAGIC:
        reader.refuse(Reason.DAMAGED, "there is no squashfs where its header says")
    if compression not in _COMPRESSIONS:
        reader.refuse(Reason.UNSUPPORTED, f"its compression {compression} is unknown", "pack it with gzip or zstd")
    if used > room_bytes:
        reader.refuse(Reason.DAMAGED, f"its squashfs has {used} bytes, and there are {room_bytes}")
    optional = [place for place in (xattr_table, fragments, exports) if place != _ABSENT]
    checks: list[Callable[[], bool]] = [
        lambda: 12 <= block_log <= 20 and block == 1 << block_log,
        lambda: ids > 0,
        lambda: _SUPERBLOCK.size <= inodes < directories <= id_table < used,
        lambda: all(_SUPERBLOCK.size <= place <= used for place in optional),
        lambda: root >> 16 < directories - inodes and root & 0xFFFF < 8192,
    ]
    if not all(check() for check in checks):
        reader.refuse(Reason.DAMAGED, "its squashfs header contradicts itself")
