"""JSON Schema of the manifest, for editors. Pure; made from the models, so it cannot fall behind them."""

from typing import Any

from retinue.manifest.scalars import DURATION_PATTERN, render_duration
from retinue.manifest.schema import Manifest
from retinue.manifest.template import Template

# Constraints on a value that is parsed from text keep pydantic's own names in its schema.
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}

_NAME_PATTERN = "^[a-z][a-z0-9-]{0,39}$"


def build_json_schema() -> dict[str, Any]:
    """Build the schema, draft 2020-12; descriptions are the strings under the fields.

    Source: https://json-schema.org/draft/2020-12; read by yaml-language-server (`# yaml-language-server: $schema=…`).
    """
    plain: dict[str, Any] = _clean(Manifest.model_json_schema(by_alias=True))
    for section in ("services", "nodes"):
        plain["properties"][section]["propertyNames"] = {"pattern": _NAME_PATTERN}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "retinue manifest", **plain}


def build_template_schema() -> dict[str, Any]:
    """Build the schema of a template file."""
    plain: dict[str, Any] = _clean(Template.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "retinue template", **plain}


def _clean(node: Any) -> Any:
    """Say what may be written rather than what Python holds."""
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    cleaned = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            cleaned[key] = {name: _clean(item) for name, item in value.items()}
        elif key != "title":
            cleaned[_BOUNDS.get(key, key)] = value if key in ("default", "enum", "const") else _clean(value)
    return _write_default(_loosen_text(_drop_null(cleaned)))


def _write_default(node: dict[str, Any]) -> dict[str, Any]:
    """Write a default as a person would; leave it out where only writing nothing says it."""
    if "default" not in node:
        return node
    default = node.pop("default")
    if node.get("pattern") == DURATION_PATTERN and default is not None:
        return {**node, "default": render_duration(default)}
    if node.get("enum") == ["on", "off"]:
        return {**node, "default": "on" if default else "off"}
    if default is None and {"const": "off"} in node.get("anyOf", []):
        return {**node, "default": "off"}
    return node if default is None or isinstance(default, dict) else {**node, "default": default}


def _drop_null(node: dict[str, Any]) -> dict[str, Any]:
    """An empty value is a finding, so `null` is no alternative."""
    if "anyOf" not in node:
        return node
    flat: list[Any] = []
    for option in node["anyOf"]:
        flat += option["anyOf"] if set(option) == {"anyOf"} else [option]
    options = [option for option in flat if option != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return {**options[0], **rest} if len(options) == 1 else {"anyOf": options, **rest}


def _loosen_text(node: dict[str, Any]) -> dict[str, Any]:
    """`env: {PORT: 8000}` is text to us; an editor's YAML parser makes it a number first."""
    if node.get("type") == "string" and not {"pattern", "enum", "const"} & set(node):
        return {**node, "type": ["string", "number", "boolean"]}
    return node
