"""One tar header of 512 bytes, parsed; pure. Source: POSIX.1-2017 pax, "ustar Interchange Format"; GNU tar's manual."""

from dataclasses import dataclass

BLOCK_BYTES = 512
SIZE_MAX = 2**62
_MAP_BYTES = 24


class BadTar(ValueError):
    """The stream is no tar file, or a broken one; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says, names and numbers checked for their form alone."""

    name: bytes
    type: bytes
    mode: int
    size: int
    mtime: int
    link: bytes
    block: bytes

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Type S: what of the file is not hole, as far as it stands here."""
        return _parse_pieces(self.block[386:482])

    @property
    def has_more_pieces(self) -> bool:
        return self.block[482:483] not in (b"\0", b"0", b" ")

    @property
    def real_size(self) -> int:
        """Type S: of the file with its holes."""
        return parse_number(self.block[483:495])

    @staticmethod
    def parse_more_pieces(block: bytes) -> tuple[list[tuple[int, int]], bool]:
        """Type S: parse a block that goes on with the list, and whether another one follows."""
        return _parse_pieces(block[:504]), block[504:505] not in (b"\0", b"0", b" ")


def parse_header(block: bytes) -> Header:
    """Parse a header. Errors: BadTar."""
    if not _has_checksum(block):
        raise BadTar("a header with a wrong checksum: it is no tar file, or was damaged")
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    size = parse_number(block[124:136])
    if not 0 <= size <= SIZE_MAX:
        raise BadTar(f"an entry of {size} bytes")
    return Header(
        name,
        block[156:157],
        parse_number(block[100:108]) & 0o7777,
        size,
        parse_number(block[136:148]),
        block[157:257].split(b"\0", 1)[0],
        block,
    )


def _has_checksum(block: bytes) -> bool:
    try:
        said = parse_number(block[148:156])
    except BadTar:
        return False
    eight_spaces = 8 * 0x20
    if said == sum(block) - sum(block[148:156]) + eight_spaces:
        return True
    # Some old programs added up signed bytes.
    others = block[:148] + block[156:]
    return said == sum(byte - 256 if byte > 127 else byte for byte in others) + eight_spaces


def parse_number(text: bytes) -> int:
    """Parse an octal number, or GNU's base 256. Errors: BadTar."""
    if text[0] & 0x80:
        return int.from_bytes(text[1:] if text[0] == 0x80 else text, "big", signed=text[0] != 0x80)
    digits = text.split(b"\0", 1)[0].strip()
    if digits.strip(b"01234567"):
        raise BadTar(f"a number that is none: {digits!r}")
    return int(digits, 8) if digits else 0


def _parse_pieces(text: bytes) -> list[tuple[int, int]]:
    pieces = []
    for at in range(0, len(text) - _MAP_BYTES + 1, _MAP_BYTES):
        if not text[at]:
            break
        offset, length = parse_number(text[at : at + 12]), parse_number(text[at + 12 : at + 24])
        if offset < 0 or length < 0:
            raise BadTar("the map of a sparse file has a negative number")
        pieces.append((offset, length))
    return pieces
