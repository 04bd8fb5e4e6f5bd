"""Templates: a service with parameters, kept in a YAML file.

Parses a template, checks the parameters a manifest gives, and writes the service out
in the manifest's tree, so that one check sees templates and plain services alike. Pure:
the texts come from the caller.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator

from retinue.errors import Finding, ManifestError
from retinue.manifest.compose import Path, Tree, compose_tree
from retinue.manifest.parameter import Parameter, check_limits, check_value, parse_typed
from retinue.manifest.scalars import Text, parse_whole, quote
from retinue.manifest.service import CONFIG, Kind
from retinue.manifest.shape import nearest, read_model
from retinue.manifest.shorthand import find_placeholders


class Template(BaseModel):
    """A template file."""

    model_config = CONFIG

    template: Annotated[Literal[1], BeforeValidator(parse_whole)]
    """Version of this format: 1."""
    description: Text
    """What the service does, in one or two sentences."""
    kind: Kind = "command"
    """What it is to the run."""
    parameters: dict[str, Parameter] = {}
    """Parameters by name. A dot makes a nested one: `limits.disk` is `with: {limits: {disk: 1GiB}}`."""
    service: dict[str, Any]
    """As in a manifest, with `{with.NAME}` in texts. A text that is exactly that becomes the typed value."""


@dataclass(frozen=True)
class ReadTemplate:
    """A template with the places of its lines."""

    name: str
    file: str
    model: Template
    tree: Tree


@dataclass(frozen=True)
class Shelf:
    """The templates a manifest may name."""

    texts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (file, text)."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Directory, or file, of `templates:` that cannot be read -> why."""


FindTemplates = Callable[[Sequence[str]], Shelf]
"""Given the manifest's `templates:` directories, says what is there; the shipped ones come last."""


def parse_template(text: str, name: str, file: str) -> ReadTemplate:
    """Read one template file.

    Errors: ManifestError names the template's own file and lines.
    """
    tree = compose_tree(text)
    model, findings = read_model(Template, tree) if tree.data is not None else (None, [])
    findings = tree.findings + findings
    if model is not None:
        findings += _check_parameters(model, tree)
        findings += _check_uses(model, tree)
    if findings or model is None:
        raise ManifestError(file, findings)
    return ReadTemplate(name, file, model, tree)


def _check_parameters(model: Template, tree: Tree) -> list[Finding]:
    findings = []
    for name, parameter in model.parameters.items():
        at: Path = ("parameters", name)
        if not re.fullmatch(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?", name) or name.endswith((".seconds", ".bytes")):
            findings.append(tree.found(at, f"{name!r} is not a parameter's name", "write it like 'model'", at_key=True))
        if parameter.required and parameter.default is not None:
            findings.append(tree.found((*at, "default"), "a required parameter has no use for a default", at_key=True))
        odd = check_limits(parameter)
        findings += [tree.found((*at, key), *complaint) for key, complaint in odd.items()]
        if odd or parameter.default is None:
            continue
        if complaint := _try_parse(parameter, parameter.default)[1]:
            findings.append(tree.found((*at, "default"), *complaint))
    return findings


def _check_uses(model: Template, tree: Tree) -> list[Finding]:
    known = [f"with.{name}" for name in _names_in_text(model.parameters)]
    findings = [
        tree.found(("service", key), f"'{key}' does not belong in a template", at_key=True)
        for key in ("template", "with")
        if key in model.service
    ]
    for path, text in _walk_texts(model.service, ("service",)):
        for name, written in find_placeholders(text):
            if name is not None and name.startswith("with.") and name not in known:
                findings.append(tree.found(path, f"{quote(written)} is not a parameter", nearest(name, known)))
    return findings


def _names_in_text(parameters: Mapping[str, Parameter]) -> list[str]:
    """Every name `{with.…}` may use: a duration also as `.seconds`, a size also as `.bytes`."""
    names = []
    for name, parameter in parameters.items():
        names.append(name)
        names += [f"{name}.seconds"] if parameter.type == "duration" else []
        names += [f"{name}.bytes"] if parameter.type == "size" else []
    return names


def _walk_texts(value: Any, path: Path) -> list[tuple[Path, str]]:
    if isinstance(value, str):
        return [(path, value)]
    if isinstance(value, dict):
        return [found for key, item in value.items() for found in _walk_texts(item, (*path, key))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in _walk_texts(item, (*path, index))]
    return []


def _try_parse(parameter: Parameter, value: Any) -> tuple[Any, tuple[str, str] | None]:
    """Type one value; what is wrong with it, and the hint, or None."""
    typed, complaint = parse_typed(parameter.type, value)
    if complaint is not None:
        return None, complaint
    complaint = check_value(parameter, value, typed)
    return (typed, None) if complaint is None else (None, complaint)


def type_parameters(read: ReadTemplate, given: Any, tree: Tree, at: Path) -> tuple[dict[str, Any], list[Finding]]:
    """Check what a manifest gives against the template's parameters.

    Shape:  name -> value for everything that was given or has a default. Durations and sizes stay the
            text that was written, with `NAME.seconds` and `NAME.bytes` beside them as numbers.
    """
    if not isinstance(given, dict):
        return {}, [tree.found((*at, "with"), f"is a mapping, not {quote(given)}", at_key=given is None)]
    parameters = read.model.parameters
    flat, findings = _flatten(parameters, given)
    values: dict[str, Any] = {}
    for name, (_, path) in flat.items():
        if name not in parameters:
            what = f"template '{read.name}' has no parameter {quote(name)}"
            findings.append((path, what, nearest(name, parameters) or "it takes none", True))
    for name, parameter in parameters.items():
        if name not in flat and parameter.required:
            findings.append(((), f"template '{read.name}' needs the parameter '{name}'", parameter.description, True))
            continue
        value, path = flat.get(name, (parameter.default, ()))
        if name not in flat and value is None:
            continue
        typed, complaint = _try_parse(parameter, value)
        if complaint is not None:
            findings.append((path, *complaint, value is None))
            continue
        values.update(_spell(name, parameter, value, typed))
    base = (*at, "with") if (*at, "with") in tree.keys else (*at, "template")
    return values, [tree.found((*base, *path), what, hint, at_key=key) for path, what, hint, key in findings]


def _flatten(
    parameters: Mapping[str, Parameter], given: Mapping[str, Any]
) -> tuple[dict[str, tuple[Any, Path]], list[tuple[Path, str, str, bool]]]:
    """Turn `{limits: {disk: 1GiB}}` into `limits.disk`, where the template has such a parameter."""
    outer = {name.split(".")[0] for name in parameters if "." in name}
    flat: dict[str, tuple[Any, Path]] = {}
    findings: list[tuple[Path, str, str, bool]] = []
    for key, value in given.items():
        if key not in outer:
            flat[key] = (value, (key,))
        elif isinstance(value, dict):
            flat |= {f"{key}.{inner}": (item, (key, inner)) for inner, item in value.items()}
        else:
            findings.append(((key,), f"is a mapping, not {quote(value)}", "", value is None))
    return flat, findings


def _spell(name: str, parameter: Parameter, value: Any, typed: Any) -> dict[str, Any]:
    if parameter.type == "duration":
        return {name: value.strip(), f"{name}.seconds": int(typed) if typed == int(typed) else typed}
    if parameter.type == "size":
        return {name: value.strip(), f"{name}.bytes": typed}
    if parameter.type == "number":
        return {name: value if isinstance(value, str) else typed}
    return {name: list(typed) if parameter.type == "list" else typed}


def copy_service(read: ReadTemplate) -> dict[str, Any]:
    """The template's service as data of its own, with the kind filled in."""
    return {"kind": read.model.kind, **copy.deepcopy(read.model.service)}
