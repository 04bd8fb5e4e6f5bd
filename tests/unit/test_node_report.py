"""The line that a node reports its end in: whole, however much there is to say."""

import pytest

from retinue.node.report import LINE_BYTES, NodeReport, build_line
from retinue.terms.record import from_json


def test_a_short_report_is_said_as_it_is() -> None:
    report = NodeReport("n1", clean=True, rung="namespace", note="the run is over")
    assert from_json(build_line(report), NodeReport) == report


@pytest.mark.parametrize("character", ["x", "\n", '"', "é", "\x01", "𝄞"])
def test_a_long_note_keeps_its_ends_and_stays_within_what_srun_passes_on_at_once(character: str) -> None:
    note = f"the keeper died {character * 3000} and this is why"
    line = build_line(NodeReport("n1", clean=False, rung="subreaper", left=tuple(range(10_000, 10_500)), note=note))
    assert len(line) <= LINE_BYTES
    assert line.count(b"\n") == 1
    said = from_json(line, NodeReport)
    assert said.note.startswith("the keeper died")
    assert said.note.endswith("this is why")
    assert not said.clean
    assert said.left[:2] == (10_000, 10_001)
