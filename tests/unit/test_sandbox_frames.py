"""Frames between front and shard: whole again however they are cut, refused when they are something else."""

import random

import pytest

from retinue.sandbox.shard_wire import (
    FRAME_MAX_BYTES,
    Answer,
    Ask,
    Body,
    FrameError,
    FrameKind,
    FrameReader,
    build_answer,
    build_ask,
    build_frame,
    parse_answer,
    parse_ask,
)


def test_frames_come_out_as_they_went_in_however_the_stream_is_cut() -> None:
    chance = random.Random(1)
    frames = [(chance.choice(list(FrameKind)), chance.randrange(2**32), chance.randbytes(chance.randrange(300)))
              for _ in range(200)]  # fmt: skip
    stream = b"".join(build_frame(*frame) for frame in frames)
    reader, found, at = FrameReader(), [], 0
    while at < len(stream):
        size = chance.randrange(1, 500)
        found += list(reader.feed(stream[at : at + size]))
        at += size
    assert found == frames


@pytest.mark.parametrize("body", [b"", b"{}", bytes(range(256))])
def test_an_ask_and_an_answer_carry_any_body(body: bytes) -> None:
    ask = Ask("exec", "sandbox.0-1", {"path": "/ä\n"})
    assert parse_ask(build_ask(ask, body)) == (ask, body)
    for answer in (Answer(200, body), Answer(410, body, Body.OCTETS, {"X-Offset": "7"})):
        assert parse_answer(build_answer(answer)) == answer


@pytest.mark.parametrize("stream", [b"\xff" * 9, (FRAME_MAX_BYTES + 1).to_bytes(4, "little") + b"\0" * 4 + b"\1"])
def test_a_stream_of_something_else_is_refused(stream: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(stream))


def test_a_frame_of_an_unknown_kind_is_refused_and_not_skipped() -> None:
    with pytest.raises(FrameError):
        list(FrameReader().feed(b"\0\0\0\0" + b"\0" * 4 + b"\x63"))


@pytest.mark.parametrize("payload", [b"", b"\xff\xff\xff\xff", b"\x02\0\0\0[]"])
def test_an_ask_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        parse_ask(payload)
