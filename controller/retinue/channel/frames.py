"""Frames: a 4-byte big-endian length, then that many bytes of JSON. Pure; both ends use it.

Never guesses: bytes that are not the message expected are an error, and the connection that
sent them is closed.
"""

from typing import Generic, TypeVar

from retinue.channel.messages import Message
from retinue.terms.record import DecodeError, from_json, to_json

T = TypeVar("T")

MAX_FRAME_BYTES = 8 * 1024 * 1024
MAX_UNSENT_BYTES = 2 * MAX_FRAME_BYTES
"""What a connection may owe its peer; beyond it the connection is closed and the node comes back with full state."""

_PREFIX_BYTES = 4


class FrameError(ValueError):
    """The peer sent what this connection does not speak: a bug or a stranger."""


def build_frame(message: Message) -> bytes:
    """Encode one message.

    Errors: FrameError when it is longer than a frame may be.
    """
    body = to_json(message)
    if len(body) > MAX_FRAME_BYTES:
        name = type(message).__name__
        raise FrameError(f"cannot send {name}: {len(body)} bytes, a frame holds {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


def parse_length(prefix: bytes | bytearray) -> int:
    """Read the length of the frame that follows.

    Errors: FrameError when no frame of ours is that long.
    """
    length = int.from_bytes(prefix, "big")
    if not 0 < length <= MAX_FRAME_BYTES:
        raise FrameError(f"frame of {length} bytes; 1 to {MAX_FRAME_BYTES} are allowed")
    return length


def parse_frame(body: bytes, kind: type[T]) -> T:
    """Decode the body of one frame.

    Errors: FrameError names the field that does not fit.
    """
    try:
        return from_json(body, kind)
    except DecodeError as error:
        raise FrameError(f"not a message expected here: {error}") from None


class FrameReader(Generic[T]):
    """Cuts a stream of bytes into messages."""

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[T]:
        """Take bytes as they come; return the messages they complete, in order.

        Errors: FrameError; nothing more can be read from this peer.
        """
        self._buffer += chunk
        messages: list[T] = []
        start = 0
        while len(self._buffer) - start >= _PREFIX_BYTES:
            length = parse_length(self._buffer[start : start + _PREFIX_BYTES])
            end = start + _PREFIX_BYTES + length
            if len(self._buffer) < end:
                break
            messages.append(parse_frame(bytes(self._buffer[start + _PREFIX_BYTES : end]), self._kind))
            start = end
        del self._buffer[:start]
        return messages
