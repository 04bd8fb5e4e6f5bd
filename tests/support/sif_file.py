"""SIF files and squashfs headers for tests, byte by byte as Apptainer writes them, or wrong on purpose."""

import struct
from dataclasses import dataclass, replace

HEADER = struct.Struct("<32s10s3s3s16s8q")
DESCRIPTOR = struct.Struct("<i?3I3q4q128s384s")
SUPERBLOCK = struct.Struct("<5I6H8Q")
ABSENT = 2**64 - 1
TABLE_OFFSET = 4096
DATA_OFFSET = 36864


@dataclass(frozen=True)
class Part:
    """One partition object."""

    content: bytes
    kind: int = 0x4004
    is_used: bool = True
    file_system: int = 1
    part: int = 2
    arch: bytes = b"02"
    offset: int | None = None
    size: int | None = None


def build_sif(*parts: Part, magic: bytes = b"SIF_MAGIC\0", version: bytes = b"01\0", total: int = 48) -> bytes:
    """A whole SIF file."""
    table, body, place = b"", b"", DATA_OFFSET
    for number, part in enumerate(parts, 1):
        extra = struct.pack("<ii3s", part.file_system, part.part, part.arch + b"\0")
        offset = place if part.offset is None else part.offset
        size = len(part.content) if part.size is None else part.size
        numbers = (part.kind, part.is_used, number, 0xF0000001, 0, offset, size, size, 0, 0, 0, 0)
        table += DESCRIPTOR.pack(*numbers, b"part", extra)
        body += part.content
        place += len(part.content)
    head = HEADER.pack(
        b"#!/usr/bin/env run-singularity\n", magic, version, b"02\0", bytes(range(16)),
        0, 0, total - len(parts), total, TABLE_OFFSET, DESCRIPTOR.size * 48, 32176, len(body),
    )  # fmt: skip
    return (head.ljust(TABLE_OFFSET, b"\0") + table).ljust(DATA_OFFSET, b"\0") + body


@dataclass(frozen=True)
class Superblock:
    """A squashfs header that can be true, of an image of 4,096 bytes."""

    magic: int = 0x73717368
    inode_count: int = 9
    made_utc: int = 1_700_000_000
    block_bytes: int = 131072
    fragment_count: int = 1
    compression: int = 6
    block_log: int = 17
    flags: int = 0
    id_count: int = 1
    major: int = 4
    minor: int = 0
    root: int = 100
    used_bytes: int = 4000
    id_table: int = 3900
    xattr_table: int = ABSENT
    inode_table: int = 3000
    directory_table: int = 3500
    fragment_table: int = 3700
    export_table: int = 3800

    def pack(self) -> bytes:
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return SUPERBLOCK.pack(*values).ljust(4096, b"\0")


GOOD = Superblock()


def change(**values: int) -> bytes:
    """The good header with some fields changed."""
    return replace(GOOD, **values).pack()
