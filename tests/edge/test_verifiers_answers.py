"""The answers of the demo, each scored as a person scores it."""

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.checks.verifiers import math

DATA = Path(__file__).parents[2] / "docs" / "quickstart" / "data" / "math_answers.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_an_answer_as_a_model_writes_it_scores_what_a_person_gives_it(row: dict[str, Any]) -> None:
    score, reason = math.check(row["response"], math.prepare(row["gold"], row["args"]), row["args"])
    assert score == row["score"], reason


def test_the_answers_are_many_and_each_has_its_name() -> None:
    assert len(ROWS) >= 240
    assert len({row["name"] for row in ROWS}) == len(ROWS)
    assert {row["score"] for row in ROWS} == {0.0, 1.0}
