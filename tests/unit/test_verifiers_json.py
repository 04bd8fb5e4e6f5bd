"""`json_schema`: what is JSON, which schema is none, and that nothing is ever fetched."""

import socket
from typing import Any

import pytest

from retinue.checks.plugin import Unverifiable
from retinue.checks.verifiers import json_schema
from retinue.terms.record import to_json

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["a"],
    "properties": {"a": {"type": "integer"}},
    "additionalProperties": False,
}
ELSEWHERE = "https://example.org/schema.json"


def judge(response: str, gold: Any, **args: Any) -> tuple[float, str]:
    score = json_schema.check(response, json_schema.prepare(gold, args), args)
    assert isinstance(score, tuple)
    to_json(score)
    return score


@pytest.mark.parametrize(
    ("response", "args", "score"),
    [
        ('{"a": 1}', {}, 1),
        (' {"a": 1}\n', {}, 1),
        ('{"a": "1"}', {}, 0),
        ("{}", {}, 0),
        ('Here it is:\n```json\n{"a": 2}\n```\nDone.', {}, 1),
        ('```\n{"a": 2}\n```', {}, 1),
        ('```json\n{"b": 1}\n```\n```json\n{"a": 1}\n```', {}, 1),
        ('```json\n{"a": 1}\n```\n```python\nprint()\n```', {}, 1),
        ('Here it is:\n```json\n{"a": 2}\n```', {"extract": "whole"}, 0),
        ('{"a": 1}', {"extract": "block"}, 0),
        ('```json\n{"a": 1}', {}, 0),
        ("", {}, 0),
        ("\ud800", {}, 0),
        ('{"a": 1, "a": 1}', {}, 0),
        ('{"a": NaN}', {}, 0),
        ('{"a": ' + "9" * 5000 + "}", {}, 0),
        ("[" * 100_000 + "]" * 100_000, {}, 0),
        ('{"a":' * 100_000, {}, 0),
    ],
)
def test_a_response_is_json_that_fits_or_it_scores_nothing(response: str, args: dict[str, Any], score: float) -> None:
    assert judge(response, SCHEMA, **args)[0] == score


def test_a_response_of_ten_megabytes_is_validated() -> None:
    assert judge('"' + "x" * 10_000_000 + '"', {"type": "string"})[0] == 1.0


def test_the_reason_names_the_place_that_does_not_fit() -> None:
    assert judge('{"a": "1"}', SCHEMA)[1].startswith("$.a: ")


@pytest.mark.parametrize(
    ("response", "gold", "score"),
    [
        ('{"a": 1}', {"a": 1}, 1),
        ('{"a": 1.0}', {"a": 1}, 1),
        ('{"a": 1}', {"a": 2}, 0),
        ('{"a": 1}', None, 1),
        ('{"b": 1}', None, 0),
    ],
)
def test_with_a_schema_for_all_rows_the_gold_is_the_value_to_equal(response: str, gold: Any, score: float) -> None:
    assert judge(response, gold, schema=SCHEMA)[0] == score


def test_true_is_not_one_and_order_counts_in_lists_only() -> None:
    assert judge('{"a": true}', {"a": 1}, schema=True)[0] == 0.0
    assert judge('{"b": [1, 2], "a": {}}', {"a": {}, "b": [1, 2]}, schema=True)[0] == 1.0
    assert judge("[2, 1]", [1, 2], schema=True)[0] == 0.0


def test_formats_are_checked_only_when_asked() -> None:
    schema = {"type": "string", "format": "date"}
    assert judge('"soon"', schema)[0] == 1.0
    assert judge('"soon"', schema, formats=True)[0] == 0.0


def test_an_older_draft_is_obeyed_where_the_schema_names_it() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "integer"}]}
    assert judge('["x"]', schema)[0] == 0.0
    with pytest.raises(Unverifiable, match="items"):
        json_schema.prepare({"items": [{"type": "integer"}]}, {})


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "objekt"}, "objekt"),
        ({"patternProperties": {"(": {}}}, "regex"),
        ({"$schema": "http://nowhere/"}, "nowhere"),
        ({"$schema": 3}, "draft"),
        ("{", "not a JSON schema"),
        (3, "not a schema"),
        (None, "not a schema"),
        ({"$ref": "#/$defs/missing"}, "missing"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/nope"}]}, "nope"),
        ({"$ref": "#"}, "itself"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}}, "itself"),
    ],
)
def test_a_schema_that_is_wrong_is_refused_before_the_response(schema: Any, told: str) -> None:
    with pytest.raises(Unverifiable, match=told):
        json_schema.prepare(schema, {})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": ELSEWHERE},
        {"properties": {"a": {"$ref": ELSEWHERE}}},
        {"$ref": "#/parts/a", "parts": {"a": {"items": {"$ref": ELSEWHERE}}}},
        {"$ref": "file:///etc/passwd"},
        {"$dynamicRef": ELSEWHERE},
    ],
)
def test_a_reference_out_of_the_schema_is_refused_and_nothing_is_fetched(
    schema: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("the network was asked"))
    with pytest.raises(Unverifiable, match="nothing is fetched"):
        json_schema.prepare(schema, {})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object"}}},
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"d": {"$anchor": "x"}}},
        {"$id": "https://a.b/c", "properties": {"a": {"$ref": "d"}}, "$defs": {"d": {"$id": "d", "type": "integer"}}},
        {"properties": {"next": {"$ref": "#"}}},
        {"properties": {"$ref": {"type": "string"}}},
        {"not": {"const": {"$ref": ELSEWHERE}}},
    ],
)
def test_a_reference_inside_the_schema_and_a_property_called_so_are_fine(schema: Any) -> None:
    assert judge('{"a": 1}', schema)[0] == 1.0


@pytest.mark.parametrize("args", [{"schema": 3}, {"schemas": {}}, {"extract": "first"}, {"formats": "yes"}])
def test_an_argument_that_cannot_be_meant_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(Unverifiable, match="args"):
        json_schema.prepare(SCHEMA, args)
