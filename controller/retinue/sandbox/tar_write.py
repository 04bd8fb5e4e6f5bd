"""Builds the headers of a tar stream: ustar, with a pax header before what ustar has no room for; pure."""

from retinue.sandbox.tar_header import BLOCK_BYTES

FILE, HARDLINK, SYMLINK, DIRECTORY = b"0", b"1", b"2", b"5"
_PAX = b"x"
_NAME_BYTES = 100
_SIZE_MAX = 8**11 - 1
END = bytes(2 * BLOCK_BYTES)
"""After the last entry."""


def build_header(kind: bytes, name: bytes, mode: int, mtime: int, size: int = 0, link: bytes = b"") -> bytes:
    """Build everything before an entry's data: whose it is is left out, its time is in whole seconds."""
    records = []
    if len(name) > _NAME_BYTES:
        records.append((b"path", name))
    if len(link) > _NAME_BYTES:
        records.append((b"linkpath", link))
    if size > _SIZE_MAX:
        records.append((b"size", b"%d" % size))
    if not 0 <= mtime <= _SIZE_MAX:
        records.append((b"mtime", b"%d" % mtime))
    return _build_pax(records) + _build_block(kind, name, mode, mtime, size, link)


def pad(size: int) -> bytes:
    """Build what fills the last block of so many bytes."""
    return bytes(-size % BLOCK_BYTES)


def _build_pax(records: list[tuple[bytes, bytes]]) -> bytes:
    if not records:
        return b""
    if any(not _is_utf8(value) for _, value in records):
        records.insert(0, (b"hdrcharset", b"BINARY"))
    data = b"".join(_build_record(key, value) for key, value in records)
    return _build_block(_PAX, b"././@PaxHeader", 0o644, 0, len(data), b"") + data + pad(len(data))


def _build_record(key: bytes, value: bytes) -> bytes:
    """A record begins with its own length, which counts itself."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(b"%d" % len(body))
    if len(b"%d" % length) + len(body) != length:
        length += 1
    return b"%d" % length + body


def _build_block(kind: bytes, name: bytes, mode: int, mtime: int, size: int, link: bytes) -> bytes:
    before = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        name[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"),
        mode & 0o7777,
        0,
        0,
        min(size, _SIZE_MAX),
        max(0, min(mtime, _SIZE_MAX)),
    )
    after = b"%b%b%b" % (kind, link[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"), b"ustar\x0000")
    block = (before + b" " * 8 + after).ljust(BLOCK_BYTES, b"\0")
    return before + b"%06o\0 " % sum(block) + block[len(before) + 8 :]


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
