"""The JSON Schema and the reference say what the models say, about every field."""

import re
from pathlib import Path
from typing import Any

import pytest

from retinue.manifest.jsonschema import build_json_schema, build_template_schema
from retinue.manifest.reference import build_reference
from retinue.manifest.scalars import DURATION_PATTERN, SIZE_PATTERN, parse_duration, parse_size

ROOT = Path(__file__).resolve().parents[2]


def walk(node: Any) -> list[dict[str, Any]]:
    """Every mapping in a schema."""
    if isinstance(node, list):
        return [found for item in node for found in walk(item)]
    return [node, *(found for item in node.values() for found in walk(item))] if isinstance(node, dict) else []


def test_the_page_in_docs_is_the_one_the_models_give() -> None:
    written = (ROOT / "docs" / "manifest.md").read_text()
    assert written == build_reference(), "run: python -m retinue.manifest.reference > docs/manifest.md"


@pytest.mark.parametrize("schema", [build_json_schema(), build_template_schema()])
def test_every_field_is_described_and_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for name, definition in {"": schema, **schema["$defs"]}.items():
        for key, field in definition.get("properties", {}).items():
            assert field.get("description"), f"{name}.{key} says nothing"
    for node in walk(schema):
        if isinstance(node.get("$ref"), str):
            assert node["$ref"].removeprefix("#/$defs/") in schema["$defs"]


def test_the_schema_holds_only_words_that_json_schema_knows_and_no_null() -> None:
    known = {"ge", "gt", "le", "lt"}
    for node in walk(build_json_schema()):
        assert not known & set(node)
        assert node.get("type") != "null"


def test_every_mapping_of_fixed_keys_refuses_others() -> None:
    schema = build_json_schema()
    for definition in [schema, *schema["$defs"].values()]:
        if "properties" in definition:
            assert definition["additionalProperties"] is False


def test_keys_are_those_of_the_yaml_and_defaults_are_written_as_in_yaml() -> None:
    definitions = build_json_schema()["$defs"]
    assert definitions["Run"]["properties"]["drain"]["default"] == "2m"
    assert definitions["Service"]["properties"]["with"]["type"] == "object"
    assert definitions["Place"]["properties"]["memory"]["pattern"] == SIZE_PATTERN
    assert definitions["NodeRules"]["properties"]["namespace"] == {
        "description": definitions["NodeRules"]["properties"]["namespace"]["description"],
        "enum": ["on", "off"],
        "default": "on",
    }
    assert definitions["Trainer"]["properties"]["egress"]["default"] == "off"
    assert definitions["Service"]["properties"]["replicas"]["minimum"] == 1


@pytest.mark.parametrize("text", ["90s", "1h30m", "500ms", "0s", "1.5s", "90", "", "s", "1m1h", "1:30", "-1s", "1s "])
def test_an_editor_and_the_loader_agree_on_durations(text: str) -> None:
    assert (re.search(DURATION_PATTERN, text) is not None) == can_parse(parse_duration, text.replace(" ", "?"))


@pytest.mark.parametrize("text", ["64MiB", "1.5GiB", "0B", "64", "2GB", "2 GiB", "MiB", "-1B"])
def test_an_editor_and_the_loader_agree_on_sizes(text: str) -> None:
    assert (re.search(SIZE_PATTERN, text) is not None) == can_parse(parse_size, text)


def can_parse(parse: Any, text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True
