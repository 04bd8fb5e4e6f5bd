"""What the front and its shard processes say to each other: frames on a stream socket, encoded and decoded. Pure.

A frame is a length, the exchange it belongs to and a kind, then its bytes. The front passes a caller's body on and a
shard's answer back as they are: nothing is decoded on the way.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from retinue.terms.record import Record, from_json, to_json

_FRAME = struct.Struct("<IIB")
_ASK = struct.Struct("<I")
_ANSWER = struct.Struct("<HBI")
FRAME_MAX_BYTES = 64 * 2**20
"""Above every body that the front takes."""
WINDOW_BYTES = 256 * 1024
"""Of one stream that may be under way and not yet read."""
CHUNK_BYTES = 64 * 1024


class FrameKind(IntEnum):
    """What a frame is."""

    ASK = 1
    """Front to shard: an `Ask` and the body it is about."""
    ANSWER = 2
    """Shard to front: exactly one for each ASK; its body is whole unless `Body` says that chunks follow."""
    CHUNK = 3
    """Either way: a piece of a stream."""
    END = 4
    """Either way: the stream is whole."""
    ACK = 5
    """Either way: so many bytes of the stream were read."""
    CANCEL = 6
    """Front to shard: nobody waits for the answer any more."""
    BREAK = 8
    """Shard to front: the stream goes on no more, and is not whole."""
    EVENT = 7
    """Shard to front, about no exchange."""


class Body(IntEnum):
    """What an answer's bytes are."""

    JSON = 0
    OCTETS = 1
    NDJSON_STREAM = 2
    """Chunks follow."""
    TAR_STREAM = 3
    """Chunks follow."""

    @property
    def is_stream(self) -> bool:
        return self in (Body.NDJSON_STREAM, Body.TAR_STREAM)


class Ask(Record, frozen=True):
    """The head of a request to a shard."""

    op: str
    box: str = ""
    """Id of the sandbox."""
    words: dict[str, str] = {}
    """What stood in the request's path and query."""


class Happening(Record, frozen=True):
    """Something that a shard tells unasked."""

    what: str
    """`box_lost` | `zygote_lost`."""
    box: str = ""
    zygote: int = 0
    type: str = ""
    """What requests about the sandbox get from now on: `infra_failed` | `sandbox_killed`."""
    cause: str = ""
    """In words."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a shard says to one ask."""

    status: int
    """As in HTTP."""
    body: bytes = b""
    kind: Body = Body.JSON
    headers: dict[str, str] = field(default_factory=dict)


class FrameError(ValueError):
    """The other end speaks something else."""


def build_frame(kind: FrameKind, number: int, payload: bytes = b"") -> bytes:
    """Build one frame of an exchange."""
    return _FRAME.pack(len(payload), number, kind) + payload


def build_ask(ask: Ask, body: bytes) -> bytes:
    """Build the payload of an ASK."""
    head = to_json(ask)
    return b"".join((_ASK.pack(len(head)), head, body))


def parse_ask(payload: bytes) -> tuple[Ask, bytes]:
    """Take an ASK apart. Errors: FrameError."""
    try:
        (length,) = _ASK.unpack_from(payload)
        end = _ASK.size + length
        return from_json(payload[_ASK.size : end], Ask), payload[end:]
    except (struct.error, ValueError) as error:
        raise FrameError(f"cannot read an ask: {error}") from None


def build_answer(answer: Answer) -> bytes:
    """Build the payload of an ANSWER."""
    headers = to_json(answer.headers) if answer.headers else b""
    return b"".join((_ANSWER.pack(answer.status, answer.kind, len(headers)), headers, answer.body))


def parse_answer(payload: bytes) -> Answer:
    """Take an ANSWER apart. Errors: FrameError."""
    try:
        status, kind, length = _ANSWER.unpack_from(payload)
        end = _ANSWER.size + length
        headers = from_json(payload[_ANSWER.size : end], dict[str, str]) if length else {}
        return Answer(status, payload[end:], Body(kind), headers)
    except (struct.error, ValueError) as error:
        raise FrameError(f"cannot read an answer: {error}") from None


class FrameReader:
    """Turns what comes in, in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[tuple[FrameKind, int, bytes]]:
        """Take a piece; gives the frames that are whole now. Errors: FrameError."""
        self._buffer += piece
        at = 0
        try:
            while len(self._buffer) - at >= _FRAME.size:
                length, number, kind = _FRAME.unpack_from(self._buffer, at)
                if length > FRAME_MAX_BYTES:
                    raise FrameError(f"cannot read a frame of {length} bytes")
                end = at + _FRAME.size + length
                if len(self._buffer) < end:
                    break
                payload = bytes(memoryview(self._buffer)[at + _FRAME.size : end])
                at = end
                yield _find_kind(kind), number, payload
        finally:
            del self._buffer[:at]


def _find_kind(kind: int) -> FrameKind:
    try:
        return FrameKind(kind)
    except ValueError:
        raise FrameError(f"cannot read a frame of kind {kind}") from None
