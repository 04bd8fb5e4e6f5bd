"""The one door to msgspec: frozen records, and bytes to and from them.

Everything that crosses a process boundary is a `Record` (or a tagged union of
them), so that a wrong shape is found where bytes become values and nowhere else.
"""

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

Record = msgspec.Struct
replace = msgspec.structs.replace


class DecodeError(ValueError):
    """The bytes are not the record that was asked for; the message names the field."""


def to_json(value: Any) -> bytes:
    """Encode a record as one line of JSON."""
    return msgspec.json.encode(value)


def to_pretty_json(value: Any) -> bytes:
    """Encode a record as indented JSON for files that people read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def from_json(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON into a record.

    Errors: DecodeError names the first field that does not fit.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise DecodeError(str(error)) from None


def to_plain(value: Any) -> Any:
    """Turn a record into dicts, lists, numbers and strings."""
    return msgspec.to_builtins(value)
