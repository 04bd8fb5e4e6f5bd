"""Reads a tar stream as it comes: ustar, pax, GNU's long names and sparse files. Pure; holds one header at a time.

Whatever an archive claims is checked before it is believed; a header that is no good ends the reading. What its names
and links mean is for the caller. Source: POSIX.1-2017 pax, "tar Internals" of GNU tar's manual.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import StrEnum

from retinue.sandbox.tar_header import BLOCK_BYTES, BadTar, Header, parse_header
from retinue.sandbox.tar_pax import Extras, count_map_lines, parse_map, parse_pax

Waiting = Generator[None, None, None]
"""Stops where more of the stream is needed."""
EXTRA_MAX_BYTES = 2**20
"""Of one long name or one pax header."""
_EXTRAS_MAX = 16
"""Headers in a row that only say something about the next one."""
_SPARSE_MAX = 65536
"""Pieces of one sparse file."""
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}


class Kind(StrEnum):
    """What an entry of an archive is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "link"
    HARDLINK = "hard link"
    OTHER = "device, FIFO or unknown"
    """Its data, if any, is to be skipped."""


_KINDS = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,
    b"S": Kind.FILE,
    b"5": Kind.DIRECTORY,
    b"D": Kind.DIRECTORY,
    b"2": Kind.SYMLINK,
    b"1": Kind.HARDLINK,
}
_WITHOUT_DATA = frozenset(b"123456")
"""Types whose size says nothing about the stream."""


@dataclass(frozen=True, slots=True)
class Member:
    """One entry."""

    name: bytes
    kind: Kind
    mode: int
    mtime_ns: int
    link: bytes
    data_bytes: int
    """That follow in the stream, padding not counted."""
    size: int
    """Of the file; more than data_bytes when it has holes."""
    pieces: list[tuple[int, int]] = field(default_factory=list)
    """Offset and length of what is not hole; empty for a file without holes."""


class TarStream:
    """Bytes that come in pieces, and what is made of them."""

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self.is_over = False
        self._globals: dict[bytes, bytes] = {}
        self._is_begun = False

    def feed(self, data: bytes, is_over: bool) -> None:
        """Take more of the stream; is_over: and that was all."""
        self._data = self._data[self._at :] + data
        self._at = 0
        self.is_over = is_over

    def take(self, most: int) -> memoryview:
        """Take what is here, up to so many bytes."""
        taken = memoryview(self._data)[self._at : self._at + most]
        self._at += len(taken)
        return taken

    def wait(self) -> Waiting:
        """Wait for more. Errors: BadTar: there is none."""
        if self.is_over:
            raise BadTar("it was cut short" if self._is_begun or self._data else "it is empty")
        yield

    def read(self, count: int) -> Generator[None, None, bytes]:
        """Read exactly so much."""
        while len(self._data) - self._at < count:
            yield from self.wait()
        self._at += count
        return self._data[self._at - count : self._at]

    def skip(self, count: int) -> Waiting:
        """Pass over so much."""
        while count:
            taken = self.take(count)
            count -= len(taken)
            if not taken:
                yield from self.wait()

    def read_member(self) -> Generator[None, None, Member | None]:
        """Read up to the data of the next entry; None at the end marker. Errors: BadTar."""
        extras = Extras(dict(self._globals))
        for _ in range(_EXTRAS_MAX):
            block = yield from self.read(BLOCK_BYTES)
            if not block.strip(b"\0"):
                if not extras.is_plain:
                    raise BadTar("it ends where an entry was announced")
                return None
            header = self._parse(block)
            if header.type not in (b"x", b"g", b"L", b"K", b"X"):
                return (yield from self._build_member(header, extras))
            yield from self._read_extra(header, extras)
        raise BadTar(f"more than {_EXTRAS_MAX} headers belong to one entry")

    def _parse(self, block: bytes) -> Header:
        if not self._is_begun:
            for magic, name in _COMPRESSED.items():
                if block.startswith(magic):
                    raise BadTar(f"it is compressed ({name}); send a plain tar file")
        header = parse_header(block)
        self._is_begun = True
        return header

    def _read_extra(self, header: Header, extras: Extras) -> Waiting:
        if header.size > EXTRA_MAX_BYTES:
            raise BadTar(f"a header of {header.size} bytes; {EXTRA_MAX_BYTES} is the most")
        data = yield from self.read(header.size)
        yield from self.skip(-header.size % BLOCK_BYTES)
        match header.type:
            case b"L":
                extras.values[b"path"] = data.split(b"\0", 1)[0]
            case b"K":
                extras.values[b"linkpath"] = data.split(b"\0", 1)[0]
            case b"g":
                # What is global may not name a file; the rest is kept as long as it is something we use.
                self._globals |= parse_pax(data).take_global()
                extras.values = self._globals | extras.values
            case _:
                extras.add(parse_pax(data))

    def _build_member(self, header: Header, extras: Extras) -> Generator[None, None, Member]:
        name = extras.read_name(header.name)
        is_directory = header.type in (b"0", b"\0") and name.endswith(b"/")
        kind = Kind.DIRECTORY if is_directory else _KINDS.get(header.type, Kind.OTHER)
        data_bytes = 0 if header.type[0] in _WITHOUT_DATA else extras.read_size(header.size)
        size, pieces = data_bytes, list[tuple[int, int]]()
        if header.type == b"S":
            size, pieces = yield from self._read_old_sparse(header)
        elif kind is Kind.FILE and (sparse_size := extras.read_sparse_size()) is not None:
            pieces = extras.read_pieces()
            if extras.has_map_in_data:
                pieces, used = yield from self._read_map(data_bytes)
                data_bytes -= used
            size = sparse_size
            if not pieces and not data_bytes:
                pieces = [(size, 0)]
        check_pieces(pieces, data_bytes, size)
        mtime_ns = extras.read_mtime_ns(header.mtime)
        return Member(name, kind, header.mode, mtime_ns, extras.read_link(header.link), data_bytes, size, pieces)

    def _read_old_sparse(self, header: Header) -> Generator[None, None, tuple[int, list[tuple[int, int]]]]:
        pieces = list(header.pieces)
        goes_on = header.has_more_pieces
        while goes_on:
            block = yield from self.read(BLOCK_BYTES)
            more, goes_on = header.parse_more_pieces(block)
            pieces += more
            if len(pieces) > _SPARSE_MAX:
                raise BadTar(f"a sparse file of more than {_SPARSE_MAX} pieces")
        # A file that is nothing but a hole has one piece of no length, so that the list says that it is sparse.
        return header.real_size, pieces or [(header.real_size, 0)]

    def _read_map(self, data_bytes: int) -> Generator[None, None, tuple[list[tuple[int, int]], int]]:
        """GNU 1.0: decimal numbers, one a line, in whole blocks before the data."""
        blocks: list[bytes] = []
        line_count, needed = 0, 0
        while not needed or line_count < needed:
            used = len(blocks) * BLOCK_BYTES
            if used >= data_bytes or used > EXTRA_MAX_BYTES:
                raise BadTar("the map of a sparse file has no end")
            blocks.append((yield from self.read(BLOCK_BYTES)))
            line_count += blocks[-1].count(b"\n")
            needed = needed or count_map_lines(blocks[0], _SPARSE_MAX)
        return parse_map(b"".join(blocks), needed), len(blocks) * BLOCK_BYTES


def check_pieces(pieces: list[tuple[int, int]], data_bytes: int, size: int) -> None:
    """Check that what is not hole lies in order within the file and is all there. Errors: BadTar."""
    if not pieces:
        if size != data_bytes:
            raise BadTar("a sparse file without a map")
        return
    end = 0
    for offset, length in pieces:
        if offset < end:
            raise BadTar("the map of a sparse file is out of order")
        end = offset + length
    if end > size or sum(length for _, length in pieces) != data_bytes:
        raise BadTar("the map of a sparse file does not fit its size")
