"""The small values of a manifest: durations, sizes, whole numbers, switches, text.

A YAML scalar arrives as text (nothing guesses its type), or typed from a template's
parameter or a test. Each `parse_` takes either and refuses with words a person can
act on; `render_` writes the value so that `parse_` gives the same one back.
"""

import re
import shlex
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

DURATION_PATTERN = r"^(?=\d)(\d+(\.\d+)?d)?(\d+(\.\d+)?h)?(\d+(\.\d+)?m)?(\d+(\.\d+)?s)?(\d+ms)?$"
SIZE_PATTERN = r"^\d+(\.\d+)?(B|KiB|MiB|GiB|TiB)$"
SIGNALS = ("ABRT", "ALRM", "HUP", "INT", "KILL", "QUIT", "TERM", "USR1", "USR2", "WINCH")

_DURATION = re.compile(
    r"(?:(?P<d>\d+(?:\.\d+)?)d)?(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?"
    r"(?:(?P<s>\d+(?:\.\d+)?)s)?(?:(?P<ms>\d+)ms)?",
    re.ASCII,
)
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>B|KiB|MiB|GiB|TiB)", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)
_CLOCK = re.compile(r"(?P<h>\d+):(?P<m>\d{1,2})(?::(?P<s>\d{1,2}))?", re.ASCII)
_LOOSE_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kKmMgGtT])(?:i?[bB]?)", re.ASCII)
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
_PADDED = re.compile(r"(?P<sign>-?)0+(?P<digits>\d+)", re.ASCII)

_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_LONGEST_MS = 366 * _MS["d"]


def refuse(what: str, hint: str = "") -> PydanticCustomError:
    """Make the error that carries our own words, with the hint apart."""
    return PydanticCustomError("retinue", "{what}", {"what": what, "hint": hint})


def quote(value: Any) -> str:
    """Show a value as the manifest has it, shortened: text in single quotes, a list or mapping by its name."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return repr(text) if isinstance(value, str) else text


def parse_duration(value: Any) -> float:
    """Turn `1h30m`, `90s`, `500ms`, `0s` into seconds.

    Units:  d h m s ms, largest first; whole milliseconds; at most 366 days.
    Errors: a missing unit, a Slurm clock time and a wrong order each say what to write.
    """
    if not isinstance(value, str):
        hint = f"write '{value}s'" if isinstance(value, int | float) and not isinstance(value, bool) else "write '90s'"
        raise refuse(f"is a duration, not {quote(value)}", hint)
    text = value.strip()
    if _NUMBER.fullmatch(text):
        raise refuse(f"{quote(value)} has no unit", f"write '{text}s', '{text}m' or '{text}h'")
    if clock := _CLOCK.fullmatch(text):
        parts = (f"{int(clock['h'])}h", f"{int(clock['m'])}m", f"{int(clock['s'] or 0)}s")
        written = "".join(part for part in parts if not part.startswith("0")) or "0s"
        raise refuse(f"{quote(value)} is not a duration", f"write '{written}' for hours:minutes:seconds")
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise refuse(f"{quote(value)} is not a duration", "write it like '90s', '10m', '1h30m' or '500ms'")
    total = sum((Decimal(number) * _MS[unit] for unit, number in match.groupdict().items() if number), Decimal(0))
    if total != int(total):
        raise refuse(f"{quote(value)} is finer than a millisecond", "use whole milliseconds")
    if total > _LONGEST_MS:
        raise refuse(f"{quote(value)} is longer than 366 days", "no allocation lasts that long")
    return int(total) / 1000


def render_duration(seconds: float) -> str:
    """Write seconds so that `parse_duration` gives the same number back."""
    left = round(seconds * 1000)
    text = ""
    for unit in ("h", "m", "s", "ms"):
        count, left = divmod(left, _MS[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_size(value: Any) -> int:
    """Turn `64MiB`, `2GiB`, `1.5GiB`, `512B` into bytes.

    Units:  B KiB MiB GiB TiB; powers of 1024 only, so that nobody has to guess.
    Errors: a missing or a loose unit (`2G`, `2GB`) says what to write.
    """
    if not isinstance(value, str):
        raise refuse(f"is a size, not {quote(value)}", "write it like '64MiB' or '2GiB'")
    text = value.strip()
    if _NUMBER.fullmatch(text):
        raise refuse(f"{quote(value)} has no unit", f"write '{text}MiB', '{text}GiB' or '{text}B'")
    match = _SIZE.fullmatch(text)
    if match is None:
        loose = _LOOSE_SIZE.fullmatch(text)
        hint = f"write '{loose['number']}{loose['unit'].upper()}iB'" if loose else "write it like '64MiB' or '2GiB'"
        raise refuse(f"{quote(value)} is not a size", hint)
    total = Decimal(match["number"]) * _BYTES[match["unit"]]
    if total != int(total) or total >= 2**63:
        raise refuse(f"{quote(value)} is not a whole number of bytes below 8 EiB", "use a smaller unit")
    return int(total)


def render_size(size_bytes: int) -> str:
    """Write bytes in the largest unit that divides them."""
    unit = next(unit for unit in ("TiB", "GiB", "MiB", "KiB", "B") if size_bytes % _BYTES[unit] == 0)
    return f"{size_bytes // _BYTES[unit]}{unit}" if size_bytes else "0B"


def parse_whole(value: Any) -> int:
    """Turn `4` into a whole number; `010`, `0x10`, `1_000`, `4.0` are refused, not guessed at."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        return int(value)
    hint = "write it like '4'"
    if isinstance(value, str) and (padded := _PADDED.fullmatch(value)):
        hint = f"write '{padded['sign']}{padded['digits']}' without leading zeros"
    raise refuse(f"is a whole number, not {quote(value)}", hint)


def parse_bool(value: Any) -> bool:
    """Accept exactly `true` and `false`."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    word = value.lower() if isinstance(value, str) else ""
    hint = "write 'true' or 'false'"
    if word in ("yes", "on", "y", "true"):
        hint = "write 'true'"
    elif word in ("no", "off", "n", "false"):
        hint = "write 'false'"
    raise refuse(f"is true or false, not {quote(value)}", hint)


def parse_switch(value: Any) -> bool:
    """Accept exactly `on` and `off`."""
    if isinstance(value, bool):
        return value
    if value in ("on", "off"):
        return bool(value == "on")
    raise refuse(f"is on or off, not {quote(value)}", "write 'on' or 'off'")


def parse_text(value: Any) -> str:
    """Accept text, and what a template's typed parameter makes of it."""
    if isinstance(value, str):
        if "\0" in value:
            raise refuse("holds a NUL byte", "no argument, name or path can")
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        raise refuse("has no value", "write one ('' is the empty text), or remove the line")
    raise refuse(f"is text, not {quote(value)}")


def parse_texts(value: Any) -> tuple[str, ...]:
    """Accept a list of texts; a single text is refused with the list it should be."""
    if isinstance(value, str):
        raise refuse(f"is a list, not the text {quote(value)}", f"write {render_argv(value)}")
    if not isinstance(value, list | tuple):
        raise refuse(f"is a list, not {quote(value)}", "write [first, second]")
    return tuple(value)


def render_argv(text: str) -> str:
    """Show a command line as the list a manifest wants."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    shown = (word if re.fullmatch(r"[\w./-]+", word) else '"' + word.replace('"', '\\"') + '"' for word in words)
    return f"[{', '.join(shown)}]"


def parse_signal(value: Any) -> str:
    """Accept a signal's name without SIG."""
    text = value if isinstance(value, str) else quote(value)
    if text in SIGNALS:
        return text
    bare = text.upper().removeprefix("SIG")
    hint = f"write '{bare}'" if bare in SIGNALS else f"one of {', '.join(SIGNALS)}"
    raise refuse(f"{quote(value)} is not the name of a signal", hint)


def parse_count(value: Any) -> int | str:
    """Accept a whole number of nodes, or `rest`."""
    if value == "rest":
        return "rest"
    try:
        count = parse_whole(value)
    except PydanticCustomError:
        raise refuse(f"is a whole number or 'rest', not {quote(value)}") from None
    if count < 1:
        raise refuse(f"must be at least 1, not {count}", "leave the group out when it has no node")
    return count


def parse_tcp(value: Any) -> int | bool:
    """Accept `true` (the replica's own port) or a port number."""
    if value is True or value == "true":
        return True
    try:
        port = parse_whole(value)
    except PydanticCustomError:
        port = 0
    if not 1 <= port <= 65535:
        raise refuse(f"is 'true' or a port from 1 to 65535, not {quote(value)}")
    return port


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(render_duration),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["90s", "10m", "1h30m", "500ms"]}),
]
PositiveDuration = Annotated[Duration, Field(gt=0)]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(render_size),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN, "examples": ["64MiB", "2GiB"]}),
]
Whole = Annotated[int, BeforeValidator(parse_whole)]
Port = Annotated[Whole, Field(ge=1, le=65535)]
Flag = Annotated[bool, BeforeValidator(parse_bool)]
Switch = Annotated[
    bool,
    BeforeValidator(parse_switch),
    PlainSerializer(lambda value: "on" if value else "off"),
    WithJsonSchema({"enum": ["on", "off"]}),
]
Text = Annotated[str, BeforeValidator(parse_text)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(parse_texts)]
SignalName = Annotated[str, BeforeValidator(parse_signal), WithJsonSchema({"enum": list(SIGNALS)})]
