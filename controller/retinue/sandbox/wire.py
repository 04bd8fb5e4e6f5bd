"""Messages between host and sandbox program, encoded and decoded; the C side and the meanings are in runtime/wire.h."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from retinue.errors import PermanentError

_HEADER = struct.Struct("<IIII")
_LENGTH = struct.Struct("<I")
PACKET_MAX_BYTES = 64 * 1024
"""Longer messages travel in a file; a packet may have about 200 KB at most."""
FILE_MAX_BYTES = 16 * 1024 * 1024


class Kind(IntEnum):
    """What a message is; runtime/wire.h says what each carries."""

    IN_FILE = 1
    SPACE = 10
    ZYGOTE = 11
    HELPER = 12
    UNMOUNT = 13
    SIGNAL_CHILD = 14
    CREATE = 20
    IMAGE = 21
    EXEC = 30
    SIGNAL = 31
    KILL = 32
    STATS = 33
    ROOT = 40
    READY = 50
    FAILED = 51
    STARTED = 52
    GONE = 53
    DONE = 54
    EXITED = 55
    KILLED = 56
    USAGE = 57
    MEMORY = 58


class Flag(IntFlag):
    """Switches of a sandbox."""

    NET = 1
    FAKE_IDS = 2
    NO_USERXATTR = 4
    MEMFD = 8


FLAGS_OF_FILTER = Flag.NET | Flag.FAKE_IDS | Flag.MEMFD
"""What a filter of system calls depends on. All sandboxes of a zygote have the same of these."""


class Target(IntEnum):
    """Whom a signal is for: the command, its process group, or everything the exec started."""

    LEADER = 0
    GROUP = 1
    TREE = 2


class Why(IntEnum):
    """Why a command ended."""

    EXITED = 0
    SIGNALLED = 1
    MEMORY = 2
    KILLED = 3


class WireError(PermanentError):
    """A message that cannot be sent or read."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    kind: Kind
    id: int
    """Of the request; an answer has the same. 0: about no request."""
    numbers: tuple[int, ...] = ()
    fields: tuple[bytes, ...] = ()

    def number(self, index: int) -> int:
        """One number; 0 when it was not sent."""
        return self.numbers[index] if index < len(self.numbers) else 0


def encode(message: Message) -> bytes:
    """Put a message into bytes. Errors: WireError for a field with a NUL, or more than a file may carry."""
    numbers = [number & 0xFFFFFFFFFFFFFFFF for number in message.numbers]
    parts = [
        _HEADER.pack(message.kind, message.id, len(numbers), len(message.fields)),
        struct.pack(f"<{len(numbers)}Q", *numbers),
    ]
    for field in message.fields:
        parts += (_LENGTH.pack(len(field)), field, b"\0")
    encoded = b"".join(parts)
    if len(encoded) > FILE_MAX_BYTES:
        raise WireError(f"cannot send {len(encoded)} bytes to a sandbox: {FILE_MAX_BYTES} at most")
    return encoded


def decode(data: bytes) -> Message:
    """Take a message out of bytes. Errors: WireError."""
    try:
        kind, number, number_count, field_count = _HEADER.unpack_from(data)
        numbers = struct.unpack_from(f"<{number_count}Q", data, _HEADER.size)
        at = _HEADER.size + 8 * number_count
        fields = []
        for _ in range(field_count):
            (length,) = _LENGTH.unpack_from(data, at)
            field = data[at + _LENGTH.size : at + _LENGTH.size + length]
            at += _LENGTH.size + length + 1
            if data[at - 1 : at] != b"\0":
                raise WireError("cannot read a message: a field is cut short")
            fields.append(field)
        return Message(Kind(kind), number, numbers, tuple(fields))
    except (struct.error, ValueError) as error:
        raise WireError(f"cannot read a message: {error}") from None


def check_words(words: Sequence[bytes]) -> None:
    """Refuse a NUL, which would end a word for the kernel. Errors: WireError."""
    for word in words:
        if b"\0" in word:
            raise WireError(f"cannot pass {word[:40]!r} to a command: it has a NUL byte")
