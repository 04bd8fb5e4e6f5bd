"""Bytes become the messages that were sent, however the network cuts them; anything else is an error."""

import random

import pytest

from retinue.channel import frames
from retinue.channel.frames import FrameError, FrameReader, build_frame
from retinue.channel.messages import Answer, Ask, Beat, FromAgent, FromOperator, GatewayBound, Report
from retinue.terms.replica import Exited

MESSAGES = [
    Beat(loop_lag_s=0.25, memory_free_mib=7),
    Report("judge/0", Exited(3, code=None, signal=9, last_lines="é\n\x00")),
    GatewayBound(port=29000, is_bound=False, holder="pid 7"),
]


def test_messages_survive_any_cutting_of_the_stream() -> None:
    stream = b"".join(build_frame(message) for message in MESSAGES) * 5
    chance = random.Random(7)
    for _ in range(50):
        reader = FrameReader[FromAgent](FromAgent)
        got: list[FromAgent] = []
        at = 0
        while at < len(stream):
            step = chance.choice([1, 2, 3, 5, 60, 400])
            got += reader.feed(stream[at : at + step])
            at += step
        assert got == MESSAGES * 5


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x80\x00\x01",
        b"\x00\x00\x00\x02{}",
        b"\x00\x00\x00\x04\xff\xfe\x00\x01",
        b'\x00\x00\x00\x0e{"m":"Unknown"}'[:18],
        build_frame(Ask("down")),
        build_frame(Answer(True, "")),
        b'\x00\x00\x00\x23{"m":"Beat","loop_lag_s":"much"}   ',
    ],
)
def test_what_an_agent_may_not_say_is_an_error(garbage: bytes) -> None:
    with pytest.raises(FrameError):
        FrameReader[FromAgent](FromAgent).feed(garbage)


def test_an_operator_may_not_talk_like_an_agent() -> None:
    with pytest.raises(FrameError):
        FrameReader[FromOperator](FromOperator).feed(build_frame(Beat()))


def test_a_message_too_long_for_a_frame_is_refused_by_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 1000)
    assert build_frame(Ask("down", "x" * 900))
    with pytest.raises(FrameError, match="1000"):
        build_frame(Ask("down", "x" * 1001))


def test_half_a_frame_is_not_yet_a_message() -> None:
    reader = FrameReader[FromAgent](FromAgent)
    frame = build_frame(Beat())
    assert reader.feed(frame[:-1]) == []
    assert reader.feed(frame[-1:]) == [Beat()]
