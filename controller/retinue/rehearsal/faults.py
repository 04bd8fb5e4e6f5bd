"""What is to go wrong, as words: `load=20s`, `die=30s`, `1:hang=10s`. Pure."""

import re
from collections.abc import Sequence

from retinue.terms.record import Record

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
UNITS_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
ALWAYS = 1 << 30
"""`error=all`."""


class Faults(Record, frozen=True):
    """What one incarnation does wrong; the fields' names are the words."""

    load: float = 0.0
    """Seconds until it is ready; meanwhile its memory grows and it writes to its log."""
    stall_load: float = -1.0
    """Seconds after which loading goes on no more, and never ends; negative: never."""
    loader_dies: float = -1.0
    """Seconds after which the engine's process dies while its parent waits for it."""
    die: float = -1.0
    """Seconds after it was ready until it exits with `die_code`."""
    die_code: int = 1
    hang: float = -1.0
    """Seconds after it was ready until the engine computes no more; the server around it stays healthy."""
    error: int = 0
    """So many requests are answered 500."""
    ignore_term: bool = False
    memory: int = 0
    """Bytes that a process of the engine holds which has left the process group."""


WORDS = (
    "load=TIME, stall-load=TIME, loader-dies=TIME, die=TIME, die-code=N, hang=TIME, error=N|all, ignore-term, "
    "memory=SIZE"
)


def parse_faults(words: Sequence[str], incarnation: int) -> Faults:
    """Parse what goes wrong in this incarnation.

    Shape:  `N:` before a word is for the N-th launch alone.
    Errors: ValueError names the word.
    """
    found: dict[str, float | int | bool] = {}
    for word in words:
        match = re.fullmatch(r"(?:(\d+):)?([a-z-]+)(?:=(\w[\w.]*))?", word)
        name = match[2].replace("-", "_") if match else ""
        if match is None or name not in Faults.__struct_fields__:
            raise ValueError(f"{word!r} is no fault; there are {WORDS}")
        value = _parse_value(name, match[3] or "", word)
        if match[1] is None or int(match[1]) == incarnation:
            found[name] = value
    return Faults(**found)  # type: ignore[arg-type]


def _parse_value(name: str, text: str, word: str) -> float | int | bool:
    if name == "ignore_term":
        if text:
            raise ValueError(f"{word!r}: it is ignore-term alone")
        return True
    if name in ("error", "die_code"):
        if name == "error" and text == "all":
            return ALWAYS
        if not text.isdigit():
            raise ValueError(f"{word!r}: it is followed by a number")
        return int(text)
    units = UNITS_BYTES if name == "memory" else UNITS_S
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]+)", text)
    if match is None or match[2] not in units:
        raise ValueError(f"{word!r}: a unit is missing, one of {', '.join(units)}")
    value = float(match[1]) * units[match[2]]
    return int(value) if name == "memory" else value
