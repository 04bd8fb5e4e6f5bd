"""Durations, sizes, numbers and switches: what is taken, and what a refusal tells people to write."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from retinue.manifest.scalars import (
    parse_bool,
    parse_count,
    parse_duration,
    parse_signal,
    parse_size,
    parse_switch,
    parse_tcp,
    parse_text,
    parse_texts,
    parse_whole,
    render_duration,
    render_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("0s", 0.0),
        ("1.5s", 1.5),
        ("1d", 86400.0),
        ("1s500ms", 1.5),
        (" 2m ", 120.0),
        ("366d", 366 * 86400.0),
    ],
)
def test_durations_are_seconds_whatever_unit_was_written(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("64MiB", 64 * 2**20), ("2GiB", 2**31), ("1.5GiB", 3 * 2**29), ("512B", 512), ("0B", 0), ("1TiB", 2**40)],
)
def test_sizes_are_bytes_and_units_are_powers_of_1024(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


REFUSED: list[tuple[Callable[[Any], Any], Any, str, str]] = [
    (parse_duration, "90", "'90' has no unit", "write '90s', '90m' or '90h'"),
    (parse_duration, 90, "is a duration, not 90", "write '90s'"),
    (parse_duration, True, "is a duration, not true", "write '90s'"),
    (parse_duration, "1:30:00", "'1:30:00' is not a duration", "write '1h30m' for hours:minutes:seconds"),
    (parse_duration, "00:00", "'00:00' is not a duration", "write '0s' for hours:minutes:seconds"),
    (parse_duration, "30m1h", "'30m1h' is not a duration", "write it like '90s', '10m', '1h30m' or '500ms'"),
    (parse_duration, "-1s", "'-1s' is not a duration", "write it like '90s', '10m', '1h30m' or '500ms'"),
    (parse_duration, "", "'' is not a duration", "write it like '90s', '10m', '1h30m' or '500ms'"),
    (parse_duration, "٣s", "'٣s' is not a duration", "write it like '90s', '10m', '1h30m' or '500ms'"),
    (parse_duration, "0.0005s", "'0.0005s' is finer than a millisecond", "use whole milliseconds"),
    (parse_duration, "367d", "'367d' is longer than 366 days", "no allocation lasts that long"),
    (parse_size, "64", "'64' has no unit", "write '64MiB', '64GiB' or '64B'"),
    (parse_size, "2GB", "'2GB' is not a size", "write '2GiB'"),
    (parse_size, "2 g", "'2 g' is not a size", "write '2GiB'"),
    (parse_size, "0.3B", "'0.3B' is not a whole number of bytes below 8 EiB", "use a smaller unit"),
    (parse_size, "99999999TiB", "'99999999TiB' is not a whole number of bytes below 8 EiB", "use a smaller unit"),
    (parse_size, 5, "is a size, not 5", "write it like '64MiB' or '2GiB'"),
    (parse_whole, "010", "is a whole number, not '010'", "write '10' without leading zeros"),
    (parse_whole, "-007", "is a whole number, not '-007'", "write '-7' without leading zeros"),
    (parse_whole, "0x10", "is a whole number, not '0x10'", "write it like '4'"),
    (parse_whole, "1_000", "is a whole number, not '1_000'", "write it like '4'"),
    (parse_whole, "22:22", "is a whole number, not '22:22'", "write it like '4'"),
    (parse_whole, "4.0", "is a whole number, not '4.0'", "write it like '4'"),
    (parse_whole, "9" * 5000, "is a whole number, not '" + "9" * 57 + "...'", "write it like '4'"),
    (parse_whole, True, "is a whole number, not true", "write it like '4'"),
    (parse_whole, None, "is a whole number, not nothing", "write it like '4'"),
    (parse_bool, "no", "is true or false, not 'no'", "write 'false'"),
    (parse_bool, "True", "is true or false, not 'True'", "write 'true'"),
    (parse_bool, "1", "is true or false, not '1'", "write 'true' or 'false'"),
    (parse_switch, "true", "is on or off, not 'true'", "write 'on' or 'off'"),
    (parse_signal, "SIGTERM", "'SIGTERM' is not the name of a signal", "write 'TERM'"),
    (parse_signal, "int", "'int' is not the name of a signal", "write 'INT'"),
    (parse_count, "two", "is a whole number or 'rest', not 'two'", ""),
    (parse_count, "0", "must be at least 1, not 0", "leave the group out when it has no node"),
    (parse_tcp, "70000", "is 'true' or a port from 1 to 65535, not '70000'", ""),
    (parse_tcp, "false", "is 'true' or a port from 1 to 65535, not 'false'", ""),
    (parse_text, None, "has no value", "write one ('' is the empty text), or remove the line"),
    (parse_text, ["a"], "is text, not a list", ""),
    (parse_text, "a\0b", "holds a NUL byte", "no argument, name or path can"),
    (parse_texts, 'a --b "c d"', "is a list, not the text 'a --b \"c d\"'", 'write [a, --b, "c d"]'),
    (parse_texts, "it's", 'is a list, not the text "it\'s"', 'write ["it\'s"]'),
]


@pytest.mark.parametrize(("parse", "value", "what", "hint"), REFUSED)
def test_a_refusal_says_what_is_wrong_and_what_to_write(parse: Any, value: Any, what: str, hint: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        parse(value)
    assert caught.value.context == {"what": what, "hint": hint}


def test_every_whole_millisecond_survives_being_written_and_read() -> None:
    dice = random.Random(7)
    for milliseconds in [0, 1, 999, 1000, 60_000, 3_600_000, *(dice.randrange(10**10) for _ in range(500))]:
        seconds = milliseconds / 1000
        assert parse_duration(render_duration(seconds)) == seconds


def test_every_size_survives_being_written_and_read() -> None:
    dice = random.Random(8)
    for size in [0, 1, 1023, 1024, 2**40, *(dice.randrange(2**62) for _ in range(500))]:
        assert parse_size(render_size(size)) == size


def test_typed_values_of_a_template_are_taken_where_text_is_wanted() -> None:
    assert [parse_text(value) for value in (4, 0.5, True, "x")] == ["4", "0.5", "true", "x"]
