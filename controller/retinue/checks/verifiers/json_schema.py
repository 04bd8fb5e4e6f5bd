"""JSON: is the response, or its last ```json block, JSON that fits a schema (draft 2020-12 unless `$schema` says)?

Gold:   the schema; with args.schema: the value that the JSON must equal as well, or null for none.
args:   schema: one schema for all rows; extract: any | whole | block (default any: the whole response if it is JSON,
        else its last block); formats: true also checks `format`.

Fetches nothing: a `$ref` that leads out of the schema is the dataset's mistake.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from jsonschema import validators
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import Draft202012Validator
from jsonschema_specifications import REGISTRY
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from retinue.checks.plugin import Score, Unverifiable
from retinue.checks.verifiers.extract import find_fence
from retinue.checks.verifiers.options import clean, quote, read_options
from retinue.terms.record import Record

_PROBES: tuple[Any, ...] = (None, {}, [], "", 0)
"""Values that are validated once in `prepare`: a `$ref` that leads to itself shows then."""


class JsonOptions(Record, frozen=True, forbid_unknown_fields=True):
    """Arguments of `json_schema`."""

    schema: dict[str, Any] | bool | None = None
    extract: Literal["any", "whole", "block"] = "any"
    formats: bool = False


@dataclass(frozen=True)
class JsonGold:
    """What `prepare` made of gold and arguments."""

    validator: Any
    expected: Any
    """None when only the schema counts."""
    options: JsonOptions


class NotJson(ValueError):
    """The response is not JSON, in words."""


def prepare(gold: Any, args: dict[str, Any]) -> JsonGold:
    """Read gold and arguments, and check the schema itself.

    Errors: Unverifiable names the place in the schema that is wrong, or the `$ref` that leads nowhere.
    """
    options = read_options(args, JsonOptions)
    is_shared = options.schema is not None
    schema = options.schema if is_shared else _read_schema(gold)
    kind = _choose_draft(schema)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise Unverifiable(f"schema is wrong at {clean(error.json_path)}: {clean(error.message)}") from None
    # A registry of our own: jsonschema's default one fetches what it does not know from the network.
    validator = kind(schema, registry=REGISTRY, format_checker=kind.FORMAT_CHECKER if options.formats else None)
    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    try:
        _follow_references(root, REGISTRY.resolver_with_root(root), set())
        for probe in _PROBES:
            validator.is_valid(probe)
    except Unresolvable as error:
        raise Unverifiable(f"schema refers to {quote(error.ref)}, which is not in it; nothing is fetched") from None
    except RecursionError:
        raise Unverifiable("schema has a $ref that leads to itself") from None
    return JsonGold(validator, gold if is_shared else None, options)


def _follow_references(resource: Resource[Any], resolver: Any, seen: set[int]) -> None:
    """Look up every `$ref` now, because what is found missing later would depend on the response."""
    contents = resource.contents
    if not isinstance(contents, dict) or id(contents) in seen:
        return
    seen.add(id(contents))
    for key in ("$ref", "$dynamicRef"):
        if isinstance(contents.get(key), str):
            found = resolver.lookup(contents[key])
            target = Resource.from_contents(found.contents, default_specification=DRAFT202012)
            _follow_references(target, found.resolver, seen)
    for part in resource.subresources():
        _follow_references(part, resolver.in_subresource(part), seen)


def _read_schema(gold: Any) -> dict[str, Any] | bool:
    if isinstance(gold, str):
        try:
            gold = json.loads(gold)
        except (ValueError, RecursionError) as error:
            raise Unverifiable(f"gold is text that is not a JSON schema: {error}") from None
    if not isinstance(gold, dict | bool):
        raise Unverifiable(f"gold {quote(gold)} is not a schema; give an object, or args.schema and the value to equal")
    return gold


def _choose_draft(schema: dict[str, Any] | bool | None) -> Any:
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if named is None:
        return Draft202012Validator
    kind = validators.validator_for({"$schema": named}, default=None) if isinstance(named, str) else None
    if kind is None:
        raise Unverifiable(f"schema names a draft that is not known: {quote(named)}")
    return kind


def check(response: str, gold: Any, args: dict[str, Any]) -> Score:
    """Validate the response's JSON."""
    prepared = gold if isinstance(gold, JsonGold) else prepare(gold, args)
    try:
        value = _read_json(response, prepared.options.extract)
    except NotJson as error:
        return 0.0, str(error)
    try:
        worst = best_match(prepared.validator.iter_errors(value))
    except RecursionError:
        return 0.0, "the JSON is nested too deeply"
    if worst is not None:
        return 0.0, f"{clean(worst.json_path)}: {clean(worst.message)}"
    if prepared.expected is not None and not is_equal(value, prepared.expected):
        return 0.0, f"valid, but {quote(json.dumps(value))} is not {quote(json.dumps(prepared.expected))}"
    return 1.0, "valid" if prepared.expected is None else "valid and equal"


def _read_json(response: str, extract: str) -> Any:
    block = find_fence(response, ("json", "")) if extract != "whole" else None
    if extract == "block" and block is None:
        raise NotJson("no ```json block in the response")
    if extract == "block" or (block is not None and not response.lstrip().startswith(("{", "[", '"'))):
        return _parse_json(block or "")
    try:
        return _parse_json(response)
    except NotJson:
        if block is None:
            raise
    return _parse_json(block)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_build_object)
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise NotJson("not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(f"not JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs):
        raise ValueError("a key is given twice in one object")
    return built


def is_equal(one: Any, other: Any) -> bool:
    """Say whether two JSON values are equal: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(is_equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def warm() -> None:
    """Load the meta-schema and its validators once; the first use of them takes 50 ms."""
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    check('{"a": 1}', prepare(schema, {"formats": True}), {})
    check('```json\n{"a": ""}\n```', prepare(schema, {}), {})


check.prepare = prepare  # type: ignore[attr-defined]
check.warm = warm  # type: ignore[attr-defined]
