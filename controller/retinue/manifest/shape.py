"""Data against a model: every finding of shape and type, and what is left when they are taken out.

The checks that follow run on what is left, so that one wrong line does not hide the
others. The one place that turns pydantic's errors into our words.
"""

import copy
import difflib
from collections.abc import Iterable
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from retinue.errors import Finding
from retinue.manifest.compose import Path, Tree
from retinue.manifest.scalars import quote
from retinue.manifest.schema import RUN_NAME_PATTERN

M = TypeVar("M", bound=BaseModel)

_STAND_INS: dict[str | int, Any] = {
    "retinue": 1,
    "run": {"name": "unnamed"},
    "name": "unnamed",
    "services": {"unnamed": {"command": ["true"]}},
    "count": 1,
    "path": "/",
}
"""Values for required fields that are missing or wrong, so that the rest can be looked at; never returned as loaded."""

_ROUNDS = 6
"""Each round takes out what the one before found; nesting of required fields is never this deep."""

_EXAMPLES = {
    "retinue": "write 'retinue: 1', the version of this format",
    "run": "write 'run: {name: my-run}'",
    "name": "write 'name: my-run'",
    "services": "name at least one service",
    "count": "write 'count: 2' or 'count: rest'",
    "path": "write 'path: /health'",
}


def read_model(model: type[M], tree: Tree) -> tuple[M | None, list[Finding]]:
    """Validate the tree's data.

    Shape:  (model, []) when it fits; else the model without the parts that do not fit, or None when
            too little is left, and one finding for each part.
    """
    data = copy.deepcopy(tree.data)
    fitting, errors = _validate(model, data)
    # An empty value passes for every field that may be left out.
    empty = [path for path in _find_empty(data, ()) if not any(path[: len(one["loc"])] == one["loc"] for one in errors)]
    findings = [*(_word(model, tree, one) for one in errors), *(_word_empty(tree, path) for path in empty)]
    wrong = [*((one["loc"], one["type"]) for one in errors), *((path, "empty") for path in empty)]
    for _ in range(_ROUNDS):
        if not wrong:
            return fitting, findings
        for path, kind in wrong:
            _take_out(data, path, kind)
        fitting, errors = _validate(model, data)
        wrong = [(one["loc"], one["type"]) for one in errors]
    return None, findings


def _validate(model: type[M], data: Any) -> tuple[M | None, list[Any]]:
    """The model, or every error."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _find_empty(value: Any, path: Path) -> list[Path]:
    if value is None:
        return [path]
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _find_empty(item, (*path, key))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in _find_empty(item, (*path, index))]
    return []


def _word_empty(tree: Tree, path: Path) -> Finding:
    return tree.found(path, "has no value", "write one, or remove the line", at_key=True)


def nearest(word: str, known: Iterable[str]) -> str:
    """Say `did you mean 'x'?` for the nearest known word, else list what is known."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(known)}" if known else ""


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The model inside an annotation such as `Probe | None` or `dict[str, Service]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        if (found := submodel(part)) is not None:
            return found
    return None


def _is_mapping_of(annotation: Any) -> bool:
    parts = [annotation, *get_args(annotation)]
    return any(get_origin(part) is dict for part in parts)


def keys_at(model: type[BaseModel], path: Path) -> list[str]:
    """The keys a mapping at this path of the document may have; empty where any key may stand."""
    here: type[BaseModel] | None = model
    steps = iter(path)
    for step in steps:
        if here is None:
            return []
        annotation = next((f.annotation for f in here.model_fields.values() if f.alias == step), None)
        if _is_mapping_of(annotation) and next(steps, None) is None:
            return []
        here = submodel(annotation)
    return [] if here is None else [field.alias or name for name, field in here.model_fields.items()]


def _word(model: type[BaseModel], tree: Tree, error: Any) -> Finding:
    """Turn one pydantic error into a finding with its place."""
    path: Path = tuple(error["loc"])
    kind, value, ctx = error["type"], error["input"], error.get("ctx", {})
    if kind == "extra_forbidden":
        hint = nearest(str(path[-1]), keys_at(model, path[:-1]))
        return tree.found(path, f"unknown key {quote(path[-1])}", hint, at_key=True, shown=path[:-1])
    if kind == "missing":
        return tree.found(path, "is missing", _EXAMPLES.get(str(path[-1]), ""), at_key=True)
    what, hint = _word_value(kind, value, ctx)
    if kind == "retinue" and isinstance(value, dict) and list(value.values()) == [None]:
        hint = f'put the braces in quotes: "{{{next(iter(value))}}}"'
    return tree.found(path, what, hint, at_key=value is None)


def _word_value(kind: str, value: Any, ctx: dict[str, Any]) -> tuple[str, str]:
    """Say what is wrong with a value, and what to write."""
    if value is None and ctx.get("what") != "has no value":
        return "has no value", "write one, or remove the line"
    if kind == "retinue":
        return ctx["what"], ctx["hint"]
    if kind in ("literal_error", "enum"):
        choices = ctx["expected"].replace("'", "")
        what = f"is {choices}, not {quote(value)}"
        words = choices.replace(" or ", ", ").split(", ")
        close = difflib.get_close_matches(str(value), words, n=1)
        return what, f"did you mean '{close[0]}'?" if close else ""
    if kind in ("dict_type", "model_type"):
        return f"is a mapping, not {quote(value)}", ""
    if kind in ("tuple_type", "list_type"):
        return f"is a list, not {quote(value)}", f"write [{value}]" if isinstance(value, str) else ""
    if kind == "greater_than_equal":
        return f"must be at least {ctx['ge']}, not {quote(_bare(value))}", ""
    if kind == "less_than_equal":
        return f"must be at most {ctx['le']}, not {quote(_bare(value))}", ""
    if kind == "greater_than":
        return f"must be longer than zero, not {quote(value)}", ""
    if kind == "too_short":
        return "is empty", "name at least one"
    if kind == "string_pattern_mismatch":
        return f"{quote(value)} does not fit", _PATTERN_HINTS.get(ctx["pattern"], f"pattern {ctx['pattern']}")
    return f"does not fit ({kind})", ""


_PATTERN_HINTS = {
    "^/": "a path begins with '/'",
    RUN_NAME_PATTERN: "letters, digits, '.', '_' and '-', at most 64",
}


def _bare(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


def _take_out(data: Any, path: Path, kind: str) -> None:
    """Remove what an error points at (or the nearest thing around it); put a stand-in where the field is required."""
    here, owners = data, []
    for step in path[:-1]:
        if not _holds(here, step):
            break
        owners.append((here, step))
        here = here[step]
    step = path[len(owners)]
    if isinstance(here, dict) and step in _STAND_INS and (kind == "missing" or _is_required(path)):
        here[step] = copy.deepcopy(_STAND_INS[step])
        return
    owner, step = (here, step) if _holds(here, step) or not owners else owners[-1]
    if isinstance(owner, dict):
        owner.pop(step, None)
    elif isinstance(owner, list):
        # Not deleted: the places of the items behind it must stay true.
        owner[int(step)] = "0"


def _is_required(path: Path) -> bool:
    return (
        path in (("retinue",), ("run",), ("run", "name"), ("services",))
        or (path[0] == "nodes" and path[-1] == "count")
        or (path[-2:] == ("http", "path"))
    )


def _holds(owner: Any, step: Any) -> bool:
    if isinstance(owner, dict):
        return step in owner
    return isinstance(owner, list) and isinstance(step, int) and step < len(owner)
