"""A service that names a template, written out in the manifest's tree.

Fills `{with.NAME}` in, lays the service's own keys over the template's, and keeps for
each value the place it came from: the manifest's line, or the template's file and line.
"""

import difflib
from typing import Any

from retinue.errors import Finding, ManifestError
from retinue.manifest.compose import Mark, Path, Tree
from retinue.manifest.scalars import parse_text, quote
from retinue.manifest.schema import Manifest
from retinue.manifest.shape import keys_at, nearest
from retinue.manifest.shorthand import replace_placeholders
from retinue.manifest.template import ReadTemplate, Shelf, copy_service, parse_template, type_parameters

# Saying one of these replaces whichever of the others the template had.
_RIVALS = (("http", "tcp", "exec", "progress"), ("replicas", "per_node"))

_UNEXPANDED = ["true"]
"""Command of a service whose template cannot be used, so that the rest of it is still checked."""

_ABSENT = object()


def expand_templates(tree: Tree, shelf: Shelf) -> list[Finding]:
    """Write every templated service of the tree out, in place.

    Errors: none raised; unknown templates, parameters and a template's own mistakes are findings.
    """
    services = tree.data.get("services")
    findings: list[Finding] = []
    read: dict[str, ReadTemplate | ManifestError] = {}
    for name, service in services.items() if isinstance(services, dict) else ():
        at: Path = ("services", name)
        if isinstance(service, dict) and "template" in service:
            findings += _expand_one(tree, at, service, shelf, read)
        elif isinstance(service, dict) and "command" not in service:
            # A misspelt key is a finding of its own; two for one mistake would be noise.
            unknown = [key for key in service if key not in keys_at(Manifest, at)]
            if not any(difflib.get_close_matches(key, ("template", "command"), n=1) for key in unknown):
                what = "has neither 'template' nor 'command'"
                findings.append(tree.found(at, what, "write one of them", at_key=True))
            service["command"] = list(_UNEXPANDED)
            service.pop("with", None)
        elif isinstance(service, dict) and "with" in service:
            findings.append(tree.found((*at, "with"), "'with' has a meaning only beside 'template'", at_key=True))
            del service["with"]
    return findings


def _expand_one(
    tree: Tree, at: Path, service: dict[str, Any], shelf: Shelf, read: dict[str, ReadTemplate | ManifestError]
) -> list[Finding]:
    findings: list[Finding] = []
    asked, given = service.pop("template"), service.pop("with", {})
    if "command" in service:
        what = "has both 'template' and 'command'"
        findings.append(tree.found((*at, "command"), what, "the template brings the command", at_key=True))
    found = _find(asked, shelf, read)
    if isinstance(found, ReadTemplate):
        values, wrong = type_parameters(found, given, tree, at)
        findings += wrong
        if not wrong:
            _write_out(tree, at, service, found, values)
            return findings
    elif isinstance(found, ManifestError):
        for finding in found.findings:
            findings.append(tree.found((*at, "template"), f"in template {finding.render(found.file)}"))
    else:
        hint = nearest(asked, sorted(shelf.texts)) if isinstance(asked, str) else ""
        what = f"there is no template {quote(asked)}" if isinstance(asked, str) else f"is text, not {quote(asked)}"
        findings.append(tree.found((*at, "template"), what, hint, at_key=asked is None))
    service.setdefault("command", list(_UNEXPANDED))
    return findings


def _find(
    asked: Any, shelf: Shelf, read: dict[str, ReadTemplate | ManifestError]
) -> ReadTemplate | ManifestError | None:
    """Parse a template once, however many services name it."""
    if not isinstance(asked, str) or asked not in shelf.texts:
        return None
    if asked not in read:
        file, text = shelf.texts[asked]
        try:
            read[asked] = parse_template(text, asked, file)
        except ManifestError as error:
            read[asked] = error
    return read[asked]


def _write_out(tree: Tree, at: Path, service: dict[str, Any], read: ReadTemplate, values: dict[str, Any]) -> None:
    writer = _Writer(tree, at, read, values)
    filled = writer.fill(copy_service(read), ("service",), at)
    overlaid = _overlay(filled, service)
    service.clear()
    service.update(overlaid)


class _Writer:
    """Fills one template in, and notes the place of each value as it goes."""

    def __init__(self, tree: Tree, at: Path, read: ReadTemplate, values: dict[str, Any]) -> None:
        self.tree, self.at, self.read, self.values = tree, at, read, values
        self.known = {f"with.{name}": _spell(item) for name, item in values.items()}

    def fill(self, value: Any, source: Path, target: Path) -> Any:
        """Put the parameters in; a value that is only an absent parameter is left out."""
        self._note(source, target)
        if isinstance(value, dict):
            filled = {key: self.fill(item, (*source, key), (*target, key)) for key, item in value.items()}
            return {key: item for key, item in filled.items() if item is not _ABSENT}
        if isinstance(value, list):
            return self._fill_list(value, source, target)
        if not isinstance(value, str):
            return value
        if (name := _only_parameter(value)) is None:
            return replace_placeholders(value, self.known, "with.")
        filled = self.values.get(name, _ABSENT)
        self._note_given(name, target)
        for index in range(len(filled) if isinstance(filled, list) else 0):
            self._note_given(name, (*target, index), index)
        return filled

    def _fill_list(self, items: list[Any], source: Path, target: Path) -> list[Any]:
        """A list parameter that is an item of a list is spliced in: `[python, "{with.args}"]`."""
        filled: list[Any] = []
        for index, item in enumerate(items):
            new = self.fill(item, (*source, index), (*target, len(filled)))
            if isinstance(item, str) and isinstance(new, list):
                for offset in range(len(new)):
                    self._note_given(_only_parameter(item) or "", (*target, len(filled) + offset), offset)
                filled += new
            elif new is not _ABSENT:
                filled.append(new)
        return filled

    def _note(self, source: Path, target: Path) -> None:
        # The manifest's own marks win: what it says lies over the template.
        for marks, own in ((self.tree.keys, self.read.tree.keys), (self.tree.values, self.read.tree.values)):
            mark = own.get(source)
            old = marks.get(target)
            if mark is not None and (old is None or old.source):
                marks[target] = Mark(mark.line, mark.column, self.read.file)

    def _note_given(self, name: str, target: Path, index: int | None = None) -> None:
        """A value that came from `with:` is where the manifest wrote it."""
        given = (*self.at, "with", *name.split("."))
        mark = self.tree.values.get(given if index is None else (*given, index))
        old = self.tree.values.get(target)
        if mark is not None and (old is None or old.source):
            self.tree.values[target] = mark


def _only_parameter(text: str) -> str | None:
    """The name when a text is exactly `{with.NAME}`."""
    is_one = text.startswith("{with.") and text.endswith("}") and text.count("{") == text.count("}") == 1
    return text.removeprefix("{with.").removesuffix("}") if is_one else None


def _spell(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else parse_text(value)


def _overlay(below: Any, above: Any) -> Any:
    """Lay one value over another: mappings key by key, anything else replaces."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    merged = dict(below)
    for rivals in _RIVALS:
        if any(key in above for key in rivals):
            merged = {key: value for key, value in merged.items() if key not in rivals}
    for key, value in above.items():
        merged[key] = _overlay(merged[key], value) if key in merged else value
    return merged
