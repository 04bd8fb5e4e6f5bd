"""One HTTP/1.1 answer, read from a stream: head, framing, body, lines.

Everything is bounded. What does not follow RFC 9112 is a broken exchange, never
a guess: an answer that is cut short is never taken for a whole one.
"""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from retinue.errors import TransientError

HEAD_BYTES_MAX = 64 * 1024
"""Status line and header fields together; also the longest line of chunk framing."""
LINE_BYTES_MAX = 4 * 1024 * 1024
"""One NDJSON line: a result and its reason are 64 KiB at most before JSON escapes them."""
BODY_BYTES_MAX = 4 * 1024 * 1024
"""A body that is read whole."""
PIECE_BYTES = 64 * 1024
INTERIM_MAX = 8
"""1xx answers before the real one."""

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: .*)?")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?\r\n")
_LENGTH = re.compile(r"[0-9]{1,15}")


class Broken(TransientError):
    """The connection ended, or what came is not an answer; the server may have seen the request."""


@contextmanager
def translate_errors(is_begun: bool = False) -> Iterator[None]:
    """Translate what reading and writing a stream raises; `is_begun`: part of an answer came before.

    Errors: Broken, in words that can be an event.
    """
    try:
        yield
    except asyncio.IncompleteReadError as error:
        is_begun = is_begun or bool(error.partial)
        raise Broken("connection closed in an answer" if is_begun else "connection closed") from None
    except asyncio.LimitOverrunError:
        raise Broken(f"unreadable answer: more than {HEAD_BYTES_MAX} bytes of head or framing") from None
    except OSError as error:
        raise Broken(os.strerror(error.errno).lower() if error.errno else str(error) or "connection lost") from None


class Answer:
    """Status, header fields, and a body that is read piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str], is_http11: bool) -> None:
        self.status = status
        self.headers = headers
        """Names in lower case; the values of a repeated field joined by a comma."""
        self._reader = reader
        self._kept = bytearray()
        words = {word.strip().lower() for word in headers.get("connection", "").split(",")}
        self._is_kept_alive = "close" not in words and (is_http11 or "keep-alive" in words)
        self._left, self._is_chunked = _find_framing(status, headers)
        """Bytes of the body, or of the current chunk, still to come; None: until the connection ends."""
        self._is_done = self._left == 0 and not self._is_chunked
        self._is_first_chunk = True

    @property
    def is_reusable(self) -> bool:
        """True when the body was read to its end and the server keeps the connection."""
        return self._is_done and self._is_kept_alive and not self._kept

    async def read_piece(self) -> bytes:
        """Return the next bytes of the body; empty at its end.

        Errors: Broken when the body ends before its end.
        """
        with translate_errors(is_begun=True):
            if self._is_chunked and not self._left and not self._is_done:
                await self._open_chunk()
            if self._is_done:
                return b""
            size = PIECE_BYTES if self._left is None else min(PIECE_BYTES, self._left)
            piece = await self._reader.read(size)
        if self._left is None:
            self._is_done, self._is_kept_alive = not piece, False
            return piece
        if not piece:
            raise Broken("connection closed in an answer")
        self._left -= len(piece)
        self._is_done = self._left == 0 and not self._is_chunked
        return piece

    async def read_whole(self, bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Return the whole body.

        Errors: Broken, also when it is longer than any answer of ours.
        """
        whole = bytearray()
        while piece := await self.read_piece():
            whole += piece
            if len(whole) > bytes_max:
                raise Broken(f"unreadable answer: more than {bytes_max} bytes")
        return bytes(whole)

    async def read_line(self) -> bytes | None:
        """Return the next line of the body without its end; None after the last.

        Errors: Broken, also when the body ends within a line.
        """
        searched = 0
        while (end := self._kept.find(b"\n", searched)) < 0:
            searched = len(self._kept)
            if searched > LINE_BYTES_MAX:
                raise Broken(f"unreadable answer: a line of more than {LINE_BYTES_MAX} bytes")
            piece = await self.read_piece()
            if not piece and self._kept:
                raise Broken("connection closed in an answer")
            if not piece:
                return None
            self._kept += piece
        line = bytes(self._kept[:end])
        del self._kept[: end + 1]
        return line

    async def _open_chunk(self) -> None:
        if not self._is_first_chunk and await self._reader.readexactly(2) != b"\r\n":
            raise Broken("unreadable answer: a chunk longer than it says")
        self._is_first_chunk = False
        line = await self._reader.readuntil(b"\r\n")
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise Broken("unreadable answer: no chunk size")
        self._left = int(size[1], 16)
        if self._left:
            return
        read_bytes = 0
        while (trailer := await self._reader.readuntil(b"\r\n")) != b"\r\n":
            read_bytes += len(trailer)
            if read_bytes > HEAD_BYTES_MAX:
                raise Broken(f"unreadable answer: more than {HEAD_BYTES_MAX} bytes of trailers")
        self._is_done = True


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read the head of the answer, past interim ones.

    Errors: Broken.
    """
    for _ in range(INTERIM_MAX):
        with translate_errors():
            head = await reader.readuntil(b"\r\n\r\n")
        status, headers, is_http11 = parse_head(head)
        if status >= 200:
            return Answer(reader, status, headers, is_http11)
    raise Broken(f"unreadable answer: more than {INTERIM_MAX} interim ones")


def parse_head(head: bytes) -> tuple[int, dict[str, str], bool]:
    """Parse status line and header fields.

    Shape:  (status, fields by lower-case name, whether it is HTTP/1.1).
    Errors: Broken.
    Source: RFC 9112, 4 and 5; a field folded over two lines is refused.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise Broken(f"unreadable answer: not HTTP, {first[:40]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise Broken("unreadable answer: a bad header field")
        name, value = field[1].decode("latin-1").lower(), field[2].decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return int(status[2]), headers, status[1] == b"1"


def _find_framing(status: int, headers: dict[str, str]) -> tuple[int | None, bool]:
    """Tell how the body ends: (bytes, None or 0 for the first chunk, whether it is chunked).

    Source: RFC 9112, 6.3.
    """
    if status in (204, 304):
        return 0, False
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked":
            raise Broken(f"unreadable answer: transfer coding {coding[:40]!r}")
        return 0, True
    length = headers.get("content-length")
    if length is None:
        return None, False
    lengths = {part.strip() for part in length.split(",")}
    if len(lengths) != 1 or not _LENGTH.fullmatch(only := lengths.pop()):
        raise Broken(f"unreadable answer: content length {length[:40]!r}")
    return int(only), False
