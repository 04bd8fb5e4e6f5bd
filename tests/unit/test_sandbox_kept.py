"""What is kept of a stream: both ends, exactly, whatever the pieces it comes in."""

import base64
import random

import pytest

from retinue.sandbox.exec_output import Kept, find_whole_end
from retinue.sandbox.exec_records import ExecRequest, KeptBytes, Output
from retinue.sandbox.execs import find_kept, find_timeout


def keep(data: bytes, head: int, tail: int, piece: int = 7) -> Kept:
    kept = Kept(KeptBytes(head, tail))
    for at in range(0, len(data), piece):
        kept.add(data[at : at + piece])
    return kept


@pytest.mark.parametrize("piece", [1, 7, 5000, 100_000])
@pytest.mark.parametrize(("head", "tail"), [(0, 0), (10, 0), (0, 10), (10, 10), (5000, 4999)])
def test_head_and_tail_are_the_first_and_the_last_bytes_and_nothing_is_kept_twice(
    piece: int, head: int, tail: int
) -> None:
    data = random.Random(piece).randbytes(20_000)
    kept = keep(data, head, tail, piece)
    assert kept.split() == (data[:head], data[len(data) - tail :] if tail else b"")
    assert kept.total_bytes == len(data)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 19, 20])
def test_what_fits_is_all_in_the_head_though_it_was_kept_in_two_parts(size: int) -> None:
    data = bytes(range(65, 65 + size))
    assert keep(data, 10, 10, 3).build_output() == Output("utf-8", data.decode(), "", 0, size)


def test_one_byte_more_than_fits_is_counted_as_dropped() -> None:
    output = keep(b"a" * 10 + b"-" + b"z" * 10, 10, 10).build_output()
    assert output == Output("utf-8", "a" * 10, "z" * 10, 1, 21)


def test_text_that_is_cut_within_a_character_stays_text_and_the_halves_count_as_dropped() -> None:
    data = "äöü€😀".encode() * 100
    for size in range(8, 60):
        output = keep(data, size, size).build_output()
        assert output.encoding == "utf-8"
        head, tail = output.head.encode(), output.tail.encode()
        assert data.startswith(head)
        assert data.endswith(tail)
        assert output.dropped_bytes == len(data) - len(head) - len(tail)
        assert size - len(head) < 4
        assert size - len(tail) < 4


def test_bytes_that_are_no_text_come_back_exactly() -> None:
    data = bytes(range(256)) * 10
    output = keep(data, 100, 100).build_output()
    assert output.encoding == "base64"
    assert base64.b64decode(output.head) == data[:100]
    assert base64.b64decode(output.tail) == data[-100:]
    assert output.dropped_bytes == len(data) - 200


def test_a_lone_continuation_byte_at_the_cut_is_no_excuse_to_change_bytes() -> None:
    data = b"\x80" * 50
    output = keep(data, 10, 10).build_output()
    assert output.encoding == "base64"
    assert base64.b64decode(output.head) == data[:10]


def test_a_reader_who_comes_back_gets_what_is_new_and_learns_what_was_dropped() -> None:
    kept = keep(b"0123456789", 4, 4)
    assert kept.read_from(0) == (0, b"0123")
    assert kept.read_from(2) == (2, b"23")
    assert kept.read_from(4) == (6, b"6789")
    assert kept.read_from(8) == (8, b"89")
    assert kept.read_from(10) == (10, b"")
    assert kept.read_from(99) == (10, b"")
    kept.add(b"ab")
    assert kept.read_from(10) == (10, b"ab")


def test_a_tail_of_single_bytes_is_kept_in_few_pieces() -> None:
    kept = keep(b"x" * 100_000, 0, 50_000, 1)
    assert len(kept._tail) < 30
    assert kept.split() == (b"", b"x" * 50_000)


@pytest.mark.parametrize(
    ("data", "end"),
    [(b"", 0), (b"abc", 3), ("aä".encode(), 3), ("aä".encode()[:-1], 1), ("€".encode()[:2], 0), ("😀".encode()[:3], 0),
     ("😀".encode(), 4), (b"\x80\x80", 2)],
)  # fmt: skip
def test_where_the_last_whole_character_ends(data: bytes, end: int) -> None:
    assert find_whole_end(data) == end


def test_a_caller_gets_no_more_time_and_no_more_output_than_there_is() -> None:
    assert find_timeout(ExecRequest(), 60.0) == 60.0
    assert find_timeout(ExecRequest(timeout_s=5.0), 60.0) == 5.0
    assert find_timeout(ExecRequest(timeout_s=500.0), 60.0) == 60.0
    assert find_timeout(ExecRequest(background=True), 60.0) is None
    assert find_kept(ExecRequest(), 101, 10_000) == KeptBytes(51, 50)
    assert find_kept(ExecRequest(output=0), 101, 10_000) == KeptBytes(0, 0)
    assert find_kept(ExecRequest(output=10**9), 101, 10_000) == KeptBytes(5000, 5000)
    assert find_kept(ExecRequest(output=KeptBytes(1, 10**9)), 101, 10_000) == KeptBytes(1, 10_000)
