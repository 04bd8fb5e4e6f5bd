"""The messages of the sandbox program: both languages mean the same by every number, and nothing is lost on the way."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

import retinue.sandbox
from retinue.sandbox.box import Usage
from retinue.sandbox.config import BoxConfig, encode_cpus
from retinue.sandbox.wire import (
    FILE_MAX_BYTES,
    Flag,
    Kind,
    Message,
    Target,
    Why,
    WireError,
    check_words,
    decode,
    encode,
)

HEADER = (Path(retinue.sandbox.__file__).parent / "runtime" / "wire.h").read_text()


def read_enum(name: str) -> dict[str, int]:
    """The enumerators of one enum in wire.h, without what they all begin with."""
    [body] = re.findall(rf"enum {name} \{{(.*?)\}};", HEADER, re.DOTALL)
    found: dict[str, int] = {}
    for word, value in re.findall(r"([A-Z]\w+)(?: = (\d+))?,?", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)):
        found[word.partition("_")[2]] = int(value) if value else len(found)
    return found


@pytest.mark.parametrize(
    ("name", "values"), [("wire_kind", Kind), ("wire_flag", Flag), ("wire_target", Target), ("wire_why", Why)]
)
def test_both_languages_give_the_same_number_to_every_word(name: str, values: type[Kind]) -> None:
    assert read_enum(name) == {value.name: int(value) for value in values}


def test_a_configuration_has_as_many_numbers_as_the_program_reads_in_its_order() -> None:
    names = read_enum("wire_config")
    assert len(BoxConfig().numbers()) == names["NUMBERS"]
    assert len(BoxConfig().fields()) == read_enum("wire_config_field")["FIELDS"]
    for word, field, value in (
        ("DISK_BYTES", "disk_bytes", 11 << 20),
        ("INODE_COUNT", "inode_count", 12),
        ("SHM_BYTES", "shm_bytes", 13),
        ("MEMORY_BYTES", "memory_bytes", 14),
        ("PID_COUNT", "pid_count", 15),
        ("DATA_BYTES", "data_bytes", 16),
        ("FILE_BYTES", "file_bytes", 17),
        ("OPEN_FILES", "open_files", 18),
        ("QUEUE_BYTES", "queue_bytes", 19),
        ("LOCKED_BYTES", "locked_bytes", 20),
        ("SIGNAL_COUNT", "signal_count", 21),
        ("SYSV_BYTES", "sysv_bytes", 22),
        ("INOTIFY_COUNT", "inotify_count", 23),
        ("PTY_COUNT", "pty_count", 24),
        ("UID", "uid", 25),
        ("GID", "gid", 26),
        ("NICE", "nice_by", 7),
    ):
        assert BoxConfig(**{field: value}).numbers()[names[word]] == value, word


def test_every_switch_of_a_configuration_is_a_bit_of_its_own() -> None:
    plain = BoxConfig(has_net=False, fakes_ids=False).numbers()[0]
    assert plain == 0
    assert BoxConfig(fakes_ids=False).numbers()[0] == Flag.NET
    assert BoxConfig(has_net=False).numbers()[0] == Flag.FAKE_IDS
    assert BoxConfig(has_net=False, fakes_ids=False, has_memfd=True).numbers()[0] == Flag.MEMFD
    assert BoxConfig(has_net=False, fakes_ids=False, has_userxattr=False).numbers()[0] == Flag.NO_USERXATTR


def test_usage_has_the_programs_numbers_in_its_order() -> None:
    names = [word.lower() for word in read_enum("wire_usage") if word != "NUMBERS"]
    assert [field.name for field in fields(Usage)] == names


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.READY, 0),
        Message(Kind.EXEC, 2**32 - 1, (1, 0, 2**64 - 1), (b"/", b"", b"\xff\xfe\n", b"x" * 100_000)),
        Message(Kind.FAILED, 7, (13,), ("größer".encode(),)),
    ],
)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    assert decode(encode(message)) == message


def test_a_negative_number_goes_as_the_kernel_has_it() -> None:
    assert decode(encode(Message(Kind.CREATE, 1, (-1,)))).numbers == (2**64 - 1,)


@pytest.mark.parametrize("cut", [0, 3, 15, 20, 33])
def test_a_message_that_is_cut_short_is_refused(cut: int) -> None:
    data = encode(Message(Kind.EXEC, 1, (1,), (b"word",)))
    with pytest.raises(WireError, match="cannot read a message"):
        decode(data[: min(cut, len(data) - 1)])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(WireError, match="999"):
        decode((999).to_bytes(4, "little") + bytes(12))


def test_a_word_with_a_nul_never_reaches_a_command() -> None:
    check_words([b"fine", b""])
    with pytest.raises(WireError, match="NUL"):
        check_words([b"fine", b"not\0fine"])


def test_more_than_the_program_takes_is_refused_by_size() -> None:
    with pytest.raises(WireError, match=str(FILE_MAX_BYTES)):
        encode(Message(Kind.EXEC, 1, (), (bytes(FILE_MAX_BYTES),)))


def test_a_mask_of_cpus_has_their_bits() -> None:
    assert encode_cpus([]) == b""
    assert int.from_bytes(encode_cpus([0, 3, 65]), "little") == 1 | 8 | 1 << 65
