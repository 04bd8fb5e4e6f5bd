"""What pax headers and GNU's extra headers say about the next entry of an archive, parsed; pure."""

from dataclasses import dataclass, field

from retinue.sandbox.tar_header import SIZE_MAX, BadTar

_USED = frozenset((b"path", b"linkpath", b"size", b"mtime"))
_GLOBAL = frozenset((b"mtime",))
_SPARSE = b"GNU.sparse."
_SECOND_NS = 10**9
_TIME_MAX_NS = 2**33 * _SECOND_NS
"""Beyond it kernels and file systems disagree."""
_DIGITS_MAX = 20


@dataclass(slots=True)
class Extras:
    """Collected from the headers before an entry; the last word on a key counts."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    """Sparse format 0.0: offsets and lengths in turn."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing was said about one entry alone."""
        return not self.pieces and self.values.keys() <= _GLOBAL

    @property
    def has_map_in_data(self) -> bool:
        return self.values.get(_SPARSE + b"major") == b"1"

    def add(self, later: "Extras") -> None:
        """Take what a later header says."""
        self.values |= later.values
        self.pieces = later.pieces or self.pieces

    def take_global(self) -> dict[bytes, bytes]:
        """What may hold for all entries that follow."""
        return {key: value for key, value in self.values.items() if key in _GLOBAL}

    def read_name(self, name: bytes) -> bytes:
        """The entry's name."""
        return self.values.get(_SPARSE + b"name") or self.values.get(b"path") or name

    def read_link(self, link: bytes) -> bytes:
        """What a link says."""
        return self.values.get(b"linkpath") or link

    def read_size(self, size: int) -> int:
        """How much data follows. Errors: BadTar."""
        return _parse_decimal(self.values[b"size"]) if self.values.get(b"size") else size

    def read_mtime_ns(self, mtime: int) -> int:
        """When it was last changed, within what every kernel can keep. Errors: BadTar."""
        said = self.values.get(b"mtime")
        time_ns = _parse_time_ns(said) if said else mtime * _SECOND_NS
        return max(0, min(time_ns, _TIME_MAX_NS))

    def read_sparse_size(self) -> int | None:
        """The size with its holes; None: it has none. Errors: BadTar."""
        for key in (b"realsize", b"size"):
            if said := self.values.get(_SPARSE + key):
                return _parse_decimal(said)
        return None

    def read_pieces(self) -> list[tuple[int, int]]:
        """The map of formats 0.0 and 0.1. Errors: BadTar."""
        words = self.values[_SPARSE + b"map"].split(b",") if self.values.get(_SPARSE + b"map") else self.pieces
        return pair([_parse_decimal(word) for word in words])


def parse_pax(data: bytes) -> Extras:
    """Parse `LENGTH KEY=VALUE\\n` records; keeps what we use. Errors: BadTar."""
    extras = Extras()
    at = 0
    while at < len(data) and data[at]:
        space = data.find(b" ", at, at + _DIGITS_MAX)
        length = _parse_decimal(data[at:space]) if space > at else 0
        record = data[space + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if not equals or record[-1:] != b"\n" or at + length > len(data):
            raise BadTar("a pax header that cannot be read")
        _note(extras, key, value)
        at += length
    return extras


def _note(extras: Extras, key: bytes, value: bytes) -> None:
    if key in (_SPARSE + b"offset", _SPARSE + b"numbytes"):
        extras.pieces.append(value)
    elif key in _USED or key.startswith(_SPARSE):
        if b"\0" in value:
            raise BadTar("a pax header with a NUL in a name")
        extras.values[key] = value


def count_map_lines(block: bytes, most: int) -> int:
    """Say how many lines a map of format 1.0 has, by its first block. Errors: BadTar."""
    count = _parse_decimal(block.partition(b"\n")[0])
    if count > most:
        raise BadTar(f"a sparse file of more than {most} pieces")
    return 1 + 2 * count


def parse_map(text: bytes, line_count: int) -> list[tuple[int, int]]:
    """Parse a map of format 1.0. Errors: BadTar."""
    return pair([_parse_decimal(line) for line in text.split(b"\n", line_count)[1:line_count]])


def pair(numbers: list[int]) -> list[tuple[int, int]]:
    """Make offsets and lengths of numbers in turn. Errors: BadTar."""
    if len(numbers) % 2:
        raise BadTar("the map of a sparse file has an odd end")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def _parse_decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > _DIGITS_MAX or (number := int(text)) > SIZE_MAX:
        raise BadTar(f"a number that is none: {text[:_DIGITS_MAX]!r}")
    return number


def _parse_time_ns(text: bytes) -> int:
    whole, _, part = text.partition(b".")
    is_negative = whole.startswith(b"-")
    digits = (part[:9].ljust(9, b"0")) if part else b"0"
    time_ns = _parse_decimal(whole.lstrip(b"-") or b"0") * _SECOND_NS + _parse_decimal(digits)
    return -time_ns if is_negative else time_ns
