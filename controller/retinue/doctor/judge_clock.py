"""The clocks of nodes, as far as they can be compared from afar. Pure."""

from collections.abc import Iterator

from retinue.doctor import remedies
from retinue.doctor.records import Finding, NodeAnswer, State
from retinue.doctor.remedies import ADMIN

CLOCK_S = 1.0
"""More than this and the lines of two nodes' logs cannot be put in order."""


def measure_offset(asked: tuple[float, float], heard: tuple[float, float]) -> tuple[float, float]:
    """Say how far the other clock is ahead, and how wrong that may be.

    Shape:  `asked` is (own clock when it was sent, other clock when it came), `heard` is (own clock when the answer
            came, other clock when it was sent).
    Units:  seconds.
    Source: RFC 5905, section 8, clock offset and roundtrip delay.
    """
    (sent, came), (got, gave) = asked, heard
    return ((came - sent) + (gave - got)) / 2, max(0.0, ((got - sent) - (gave - came)) / 2)


def judge_clock(answer: NodeAnswer) -> Iterator[Finding]:
    """Only what is certain counts: an offset larger than it may be wrong."""
    if answer.clock_offset_s is None:
        return
    offset_s, error_s = answer.clock_offset_s, answer.clock_error_s
    saw = f"{offset_s:+.1f} s from the clock of whoever asked, give or take {error_s:.1f} s"
    if abs(offset_s) - error_s <= CLOCK_S:
        yield Finding("clock", ("keeper",), State.OK, "agrees with whoever asked, as far as can be told")
        return
    means = "certificates and probes do not care; times in this node's logs and the deadline its programs see are off"
    yield Finding("clock", ("keeper",), State.FALLBACK, saw, means, ADMIN, remedies.CLOCK)
