"""What may be written short: `http: /health`, `egress: off`, `depends_on: [judge]`.

Turns the short form into the long one before the models see it, and tells the JSON
Schema that both are allowed. Also the placeholder scanner, which models and checks share.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from retinue.manifest.scalars import quote, refuse

_BRACES = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")


def yaml_key(name: str) -> str:
    """The key in YAML for an attribute: without the unit, without the underscore that dodges a keyword."""
    for suffix in ("_s", "_bytes", "_"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


@dataclass(frozen=True)
class AlsoAccepts:
    """Marks a field that has a short form; only the JSON Schema reads it."""

    short: tuple[dict[str, Any], ...]
    """JSON Schemas of the short forms."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [*self.short, handler(core)]}


def spread_http(value: Any) -> Any:
    """`/health` is `{path: /health}`."""
    return {"path": value} if isinstance(value, str) else value


def spread_dependencies(value: Any) -> Any:
    """`[judge]` and `{judge: ready}` are `{judge: {condition: ready}}`."""
    if isinstance(value, str):
        raise refuse(f"is a list or a mapping, not {quote(value)}", f"write [{value}] or {{{value}: ready}}")
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return {name: {} for name in value}
    if isinstance(value, dict):
        return {name: {"condition": want} if isinstance(want, str) else want for name, want in value.items()}
    raise refuse(f"is a list of service names or a mapping, not {quote(value)}", "write {judge: ready}")


def find_placeholders(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield (name, as written) for each `{name}`; name None for a brace that opens or closes nothing.

    `{{` and `}}` are literal braces and are not yielded.
    """
    for match in _BRACES.finditer(text):
        if match[0] not in ("{{", "}}"):
            yield match["name"], match[0]


def has_placeholder(texts: Iterable[str], name: str) -> bool:
    """Say whether any of the texts holds `{name}` outside an escape."""
    return any(found == name for text in texts for found, _ in find_placeholders(text))


def replace_placeholders(text: str, values: Mapping[str, str], prefix: str) -> str:
    """Put values in for the placeholders that begin with the prefix (unknown ones: nothing); leave all else alone."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        return values.get(name, "") if name is not None and name.startswith(prefix) else match[0]

    return _BRACES.sub(replace, text)
