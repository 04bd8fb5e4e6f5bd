"""docs/manifest.md: every key of a manifest and of a template file. Pure; made from the schema.

`python -m retinue.manifest.reference > docs/manifest.md` writes it; a test compares the two.
"""

from typing import Any

from retinue.manifest.check_service import PLACEHOLDERS
from retinue.manifest.jsonschema import build_json_schema, build_template_schema
from retinue.manifest.scalars import DURATION_PATTERN, SIZE_PATTERN

_INTRO = """# The manifest

Written by `python -m retinue.manifest.reference`; do not edit. The strings are those under the fields in
`controller/retinue/manifest/schema.py` and `service.py`; `retinue schema` prints the same as JSON Schema.

A manifest is one YAML document. Text stays text: `no`, `010`, `22:22` and `1.10` mean what they say. Durations and
sizes carry a unit. An unknown or doubled key, an empty value, a tag (`!!python/…`) and a merge key (`<<`) are findings;
anchors and aliases work. All findings come in one report, one line each: `FILE:LINE:COL: path: what; hint`.

In `command`, `env` and `exec`: {placeholders},
and for each group `{{GROUP.nodelist}}` and `{{GROUP.count}}`;
`{{{{` and `}}}}` are the characters themselves. A value of `env` that begins with `env:`, `file:` or `run:` is secret:
taken from the caller's environment, read on the node (`file://…` is a URL and stays text), or the run's own token
(`run:token`).
"""

_TEMPLATE_INTRO = """## Template files

A template is a file `NAME.yaml` in a directory that `templates:` lists, or one of those shipped. A service that names
it gives parameters with `with:`; keys beside `template:` lie over the template's own, mapping by mapping.
In a template's texts `{with.NAME}` is the parameter. A text that is exactly that becomes the typed value, a list
parameter that is an item of a list is spliced in, and a value that is only an absent parameter is left out. A duration
is also `{with.NAME.seconds}`, a size `{with.NAME.bytes}`, as plain numbers.
"""


def build_reference() -> str:
    """Write the reference as Markdown: one section for each mapping, in the order they are met."""
    shown = ", ".join(f"`{{{name}}}`" for name in PLACEHOLDERS)
    sections = [_INTRO.format(placeholders=shown), *_sections(build_json_schema(), "Manifest")]
    return "\n".join([*sections, _TEMPLATE_INTRO, *_sections(build_template_schema(), "Template")])


def _sections(schema: dict[str, Any], root: str) -> list[str]:
    """Walk from the root through its references, breadth first."""
    definitions = {**schema["$defs"], root: schema}
    order = [root]
    for name in order:
        order += [found for found in _references(definitions[name]["properties"]) if found not in order]
    return [_section(name, definitions[name]) for name in order if "properties" in definitions[name]]


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return list(dict.fromkeys(name for item in node for name in _references(item)))
    if not isinstance(node, dict):
        return []
    own = [node["$ref"].rsplit("/", 1)[-1]] if isinstance(node.get("$ref"), str) else []
    inner = [name for key, item in node.items() if key != "$ref" for name in _references(item)]
    return [name for name in dict.fromkeys(own + inner) if name not in _ENUMS]


_ENUMS = {"OnExhausted": "`degrade`, `hold`, `fail_run`"}
"""Definitions that are a choice of words, not a mapping."""


def _section(name: str, definition: dict[str, Any]) -> str:
    required = definition.get("required", [])
    lines = [f"### {name}", "", definition.get("description", ""), "", "| key | value | default | meaning |"]
    lines.append("|---|---|---|---|")
    for key, node in definition["properties"].items():
        default = "required" if key in required else _default(node)
        meaning = " ".join(node.get("description", "").split()).replace("|", "\\|")
        lines.append(f"| `{key}` | {_kind(node)} | {default} | {meaning} |")
    return "\n".join([*lines, ""])


def _default(node: dict[str, Any]) -> str:
    if "default" not in node or node["default"] in ([], ""):
        return ""
    default = node["default"]
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _kind(node: dict[str, Any]) -> str:
    """Say in words what may be written."""
    if "anyOf" in node:
        return " or ".join(_kind(option) for option in node["anyOf"])
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        return _ENUMS.get(name) or f"[{name}](#{name.lower()})"
    if "enum" in node:
        return ", ".join(f"`{word}`" for word in node["enum"])
    if "const" in node:
        return f"`{str(node['const']).lower()}`"
    return _plain_kind(node)


def _plain_kind(node: dict[str, Any]) -> str:
    if node.get("pattern") in (DURATION_PATTERN, SIZE_PATTERN):
        return "duration" if node["pattern"] == DURATION_PATTERN else "size"
    if node.get("type") == "array":
        return f"list of {_kind(node['items'])}"
    if node.get("type") == "object":
        inner = node.get("additionalProperties")
        return f"mapping of name to {_kind(inner)}" if isinstance(inner, dict) else "mapping"
    words = {"integer": "whole number", "boolean": "`true`, `false`", "string": "text"}
    kind = node.get("type", "any value")
    return "text" if isinstance(kind, list) else words.get(kind, kind)


if __name__ == "__main__":
    print(build_reference(), end="")
