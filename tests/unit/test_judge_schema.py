"""A judge's answer is read, or refused with the place that does not fit; what nobody checks is refused at the call."""

import json
from typing import Any

import pytest

from retinue.client.judge_schema import check_schema, read_answer
from retinue.rehearsal.script import make_up

VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["yes", "no"]},
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
        "why": {"type": ["string", "null"], "maxLength": 40},
        "quotes": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
    },
    "required": ["verdict", "score"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "text",
    [
        '{"verdict": "yes", "score": 3}',
        ' \n{"verdict": "no", "score": 10.0, "why": null, "quotes": ["a", "b"]}\n',
        '```json\n{"verdict": "yes", "score": 0}\n```',
        '<think>is {"verdict": "no"} right? </think>\n{"verdict": "yes", "score": 3}',
    ],
)
def test_an_answer_that_fits_is_read_however_it_is_wrapped(text: str) -> None:
    assert read_answer(text, VERDICT)["verdict"] in ("yes", "no")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Yes, I think so.", "it is no JSON"),
        ('{"verdict": "yes", "score": 3', "it is no JSON"),
        ('{"verdict": "yes", "score": NaN}', "it is no JSON: NaN"),
        ('{"verdict": "yes"}', "it lacks 'score'"),
        ('{"verdict": "perhaps", "score": 3}', "it.verdict is none of"),
        ('{"verdict": "yes", "score": 11}', "it.score is 11, outside minimum 0, maximum 10"),
        ('{"verdict": "yes", "score": true}', "it.score is not of type integer"),
        ('{"verdict": "yes", "score": 2.5}', "it.score is not of type integer"),
        ('{"verdict": "yes", "score": 3, "reward": 1}', "it has 'reward', which is not asked for"),
        ('{"verdict": "yes", "score": 3, "quotes": ["a", 1]}', "it.quotes[1] is not of type string"),
        ('{"verdict": "yes", "score": 3, "quotes": ["a", "b", "c"]}', "it.quotes has the length 3"),
        ("[1]", "it is not of type object"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_an_answer_that_does_not_fit_says_where(text: str, why: str) -> None:
    with pytest.raises(ValueError, match="it") as caught:
        read_answer(text, VERDICT)
    assert str(caught.value).startswith(why)


def test_a_number_is_no_boolean_in_an_enumeration() -> None:
    with pytest.raises(ValueError, match="none of"):
        read_answer("true", {"enum": [1, 0]})


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"pattern": "x"}, "schema has 'pattern'"),
        ({"properties": {"a": {"format": "date"}}}, r"schema.properties.a has 'format'"),
        ({"items": {"$ref": "#"}}, "schema.items has"),
        ({"type": "float"}, "the type 'float'"),
    ],
)
def test_a_keyword_that_is_not_checked_here_is_the_callers_mistake(schema: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema", [VERDICT, {"anyOf": [{"type": "null"}]}, {"type": "array", "minItems": 2}, {"const": 0}]
)
def test_what_the_scripted_engine_makes_up_fits(schema: dict[str, Any]) -> None:
    check_schema(schema)
    read_answer(json.dumps(make_up(schema)), schema)
