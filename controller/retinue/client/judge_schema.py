"""The part of JSON Schema that a judge's answer is held to, again, on this side. Pure; standard library only.

Engines enforce a schema while they generate; one that does not, or was cut off, must not
pass. A keyword that is not known here is refused at the call: nothing goes unchecked in silence.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

NOTES = frozenset({"$schema", "$id", "title", "description", "default", "examples"})
"""Say nothing about a value."""
TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
SIZES = ("minLength", "maxLength", "minItems", "maxItems")
KNOWN = frozenset(
    {*BOUNDS, *SIZES, "type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"}
)
THOUGHTS = re.compile(r"\A.*</think>", re.DOTALL)
"""What a reasoning model says to itself, where its server leaves it in."""
FENCE = re.compile(r"\A```\w*\n(.*?)\n?```\Z", re.DOTALL)


def check_schema(schema: Any, where: str = "schema") -> None:
    """See that every keyword is one that is checked.

    Errors: TypeError, ValueError: the caller's program is wrong.
    """
    if not isinstance(schema, Mapping):
        raise TypeError(f"{where} is a {type(schema).__name__}, not a mapping")
    unknown = sorted(set(schema) - KNOWN - NOTES)
    if unknown:
        raise ValueError(f"{where} has {unknown[0]!r}, which is not checked here; there are {', '.join(sorted(KNOWN))}")
    for kind in _list(schema.get("type", [])):
        if kind not in TYPES:
            raise ValueError(f"{where} has the type {kind!r}; there are {', '.join(TYPES)}")
    for name, part in schema.get("properties", {}).items():
        check_schema(part, f"{where}.properties.{name}")
    for index, part in enumerate(schema.get("anyOf", ())):
        check_schema(part, f"{where}.anyOf[{index}]")
    for key in ("items", "additionalProperties"):
        if key in schema and not isinstance(schema[key], bool):
            check_schema(schema[key], f"{where}.{key}")


def read_answer(text: str, schema: Mapping[str, Any]) -> Any:
    """Read the value out of what a judge said.

    Errors: ValueError says why it cannot be read, or where it does not fit.
    """
    bare = THOUGHTS.sub("", text).strip()
    fenced = FENCE.match(bare)
    try:
        value = json.loads(fenced[1] if fenced else bare, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if problem := find_misfit(value, schema):
        raise ValueError(problem)
    return value


def find_misfit(value: Any, schema: Mapping[str, Any], where: str = "it") -> str:
    """Say where a value does not fit; empty: it does."""
    kinds = _list(schema.get("type", []))
    if kinds and not any(_is_type(value, kind) for kind in kinds):
        return f"{where} is not of type {' or '.join(kinds)}"
    if "enum" in schema and not any(_is_same(value, one) for one in schema["enum"]):
        return f"{where} is none of {list(schema['enum'])}"
    if "const" in schema and not _is_same(value, schema["const"]):
        return f"{where} is not {schema['const']!r}"
    if "anyOf" in schema and all(find_misfit(value, one, where) for one in schema["anyOf"]):
        return f"{where} fits none of anyOf"
    if isinstance(value, dict):
        return _find_in_object(value, schema, where)
    if isinstance(value, list):
        return _find_in_array(value, schema, where)
    if isinstance(value, str):
        return _find_size(len(value), schema, ("minLength", "maxLength"), where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _find_bound(value, schema, where)
    return ""


def _find_in_object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> str:
    parts = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in value]
    if missing:
        return f"{where} lacks {missing[0]!r}"
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        part = parts.get(name, others)
        if part is False:
            return f"{where} has {name!r}, which is not asked for"
        if part is not True and (found := find_misfit(item, part, f"{where}.{name}")):
            return found
    return ""


def _find_in_array(value: list[Any], schema: Mapping[str, Any], where: str) -> str:
    part = schema.get("items", True)
    for index, item in enumerate(value):
        if part is False or (part is not True and (found := find_misfit(item, part, f"{where}[{index}]"))):
            return f"{where} may not have items" if part is False else found
    return _find_size(len(value), schema, ("minItems", "maxItems"), where)


def _find_size(size: int, schema: Mapping[str, Any], keys: tuple[str, str], where: str) -> str:
    low, high = schema.get(keys[0], 0), schema.get(keys[1], math.inf)
    return "" if low <= size <= high else f"{where} has the length {size}, not {low} to {high}"


def _find_bound(value: float, schema: Mapping[str, Any], where: str) -> str:
    fits = (
        value >= schema.get("minimum", -math.inf)
        and value <= schema.get("maximum", math.inf)
        and value > schema.get("exclusiveMinimum", -math.inf)
        and value < schema.get("exclusiveMaximum", math.inf)
    )
    bounds = ", ".join(f"{key} {schema[key]}" for key in BOUNDS if key in schema)
    return "" if fits else f"{where} is {value}, outside {bounds}"


def _is_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES[kind])


def _is_same(value: Any, other: Any) -> bool:
    # JSON knows no equality of true and 1.
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _refuse(word: str) -> float:
    raise ValueError(f"it is no JSON: {word}")
