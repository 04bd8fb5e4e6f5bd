"""YAML text to plain data in which every key and value remembers its line.

Nothing is guessed: a scalar stays the text that was written (`no`, `010`, `22:22`),
only an empty one is None. The one door to PyYAML. Never raises for bad text: what is
wrong are findings, and `data` is None when nothing could be read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from retinue.errors import Finding

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The C parser when PyYAML has it: about eight times faster, same events."""

MAX_DEPTH = 40
MAX_VALUES = 50_000
"""Values after aliases are expanded: what stops a file of aliases of aliases."""

Path = tuple[str | int, ...]

# What YAML does not allow in a stream (YAML 1.1, section 5.1), and lone surrogates.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN_TAGS = ("!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True)
class Mark:
    """Where something was written."""

    line: int
    column: int
    source: str = ""
    """File of the template it comes from; empty: the manifest itself."""


@dataclass
class Tree:
    """A document as plain data, with the place of each key and value."""

    data: Any = None
    """dicts, lists, text and None."""
    keys: dict[Path, Mark] = field(default_factory=dict)
    values: dict[Path, Mark] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def place(self, path: Path, at_key: bool = False) -> Mark:
        """Find where a path was written, or the nearest thing around it that was."""
        first, second = (self.keys, self.values) if at_key else (self.values, self.keys)
        for end in range(len(path), 0, -1):
            if mark := first.get(path[:end]) or second.get(path[:end]):
                return mark
        return self.values.get((), Mark(1, 1))

    def found(self, path: Path, what: str, hint: str = "", at_key: bool = False, shown: Path | None = None) -> Finding:
        """Make a finding about a path; one inside a template is shown at the manifest's line and names the file."""
        mark = self.place(path, at_key)
        if mark.source:
            what = f"{what} (in template {mark.source}:{mark.line}:{mark.column})"
            mark = self.place((*path[:2], "template"))
        return Finding(mark.line, mark.column, render_path(path if shown is None else shown), what, hint)


def render_path(path: Path) -> str:
    """Write a path as `services.judge.command[1]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".")


def compose_tree(text: str) -> Tree:
    """Read one YAML document whose root is a mapping.

    Errors: none raised; syntax, tags, several documents, depth, aliases without end, duplicate and
            merge keys are findings. Of a duplicate key the first counts.
    """
    tree = Tree()
    text = text.removeprefix("\ufeff")
    if bad := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        what = f"holds the character U+{ord(bad[0]):04X}, which YAML does not allow"
        tree.findings.append(Finding(line, column, "", what, "is this a text file?"))
        return tree
    try:
        tree.findings.extend(_scan_events(text))
        root = yaml.compose(text, Loader=LOADER) if not tree.findings else None
    except yaml.YAMLError as error:
        tree.findings.append(_translate(error))
        return tree
    if root is None:
        if not tree.findings:
            tree.findings.append(Finding(0, 0, "", "the file is empty", "a manifest begins with 'retinue: 1'"))
        return tree
    if not isinstance(root, yaml.MappingNode):
        kind = "a list" if isinstance(root, yaml.SequenceNode) else "text"
        what = f"the file is {kind}, not a mapping"
        tree.findings.append(Finding(*_start(root), "", what, "a manifest begins with 'retinue: 1'"))
        return tree
    builder = _Builder(tree)
    tree.data = builder.build(root, ())
    if builder.left <= 0:
        what = f"the file has more than {MAX_VALUES} values once its aliases are expanded"
        tree.findings, tree.data = [Finding(0, 0, "", what, "write less, or use a template")], None
    return tree


def _scan_events(text: str) -> Iterator[Finding]:
    """Look at the events before composing: compose recurses, and forgets which tags were written out."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=LOADER):
        line, column = _start(event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if documents > 1:
            yield Finding(line, column, "", "a second YAML document begins here", "keep one per file")
            return
        if depth > MAX_DEPTH:
            yield Finding(line, column, "", f"is nested deeper than {MAX_DEPTH} levels")
            return
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _PLAIN_TAGS:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            yield Finding(
                line, column, "", f"the tag {shown!r} is not allowed", "remove the tag; the field says the type"
            )


def _translate(error: yaml.YAMLError) -> Finding:
    """Turn what the parser says into one finding."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
    if "cannot start any token" in problem:
        # libyaml does not say which: a tab is by far the most common, then @, ` and %.
        return Finding(line, column, "", "cannot read YAML: a tab or reserved character begins a value", _TAB_HINT)
    if "mapping values are not allowed" in problem:
        hint = "put text that holds ': ' in quotes, and check the indentation"
        return Finding(line, column, "", "cannot read YAML: a second ': ' on this line", hint)
    return Finding(line, column, "", f"cannot read YAML: {problem}")


_TAB_HINT = "indent with spaces; put text that begins with @, ` or % in quotes"


def _start(item: Any) -> tuple[int, int]:
    """The place of a node or an event, counted from 1."""
    return item.start_mark.line + 1, item.start_mark.column + 1


def _is_quoted(node: Any) -> bool:
    # The C parser says "" for a plain scalar, the Python one None.
    return bool(node.style)


class _Builder:
    """Turns nodes into data and marks; keeps count, because aliases repeat nodes (and may hold themselves)."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.left = MAX_VALUES

    def build(self, node: yaml.Node, path: Path) -> Any:
        self.left -= 1
        if self.left <= 0:
            return None
        self.tree.values[path] = Mark(*_start(node))
        if len(path) > MAX_DEPTH:
            # Only an alias gets here: the events were not this deep.
            self.left = 0
            return None
        if isinstance(node, yaml.MappingNode):
            return self._build_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return self._build_list(node, path)
        return node.value if node.value or _is_quoted(node) else None

    def _build_list(self, node: yaml.SequenceNode, path: Path) -> list[Any]:
        built = []
        for index, item in enumerate(node.value):
            built.append(self.build(item, (*path, index)))
            if isinstance(built[-1], str):
                # `depends_on: [judge]` is looked up as `depends_on.judge` too.
                self.tree.keys.setdefault((*path, built[-1]), Mark(*_start(item)))
        return built

    def _build_mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if self.left <= 0:
                break
            mark = Mark(*_start(key_node))
            if (complaint := self._check_key(key_node, built, path)) is not None:
                self.tree.findings.append(Finding(mark.line, mark.column, render_path(path), *complaint))
                continue
            key = key_node.value
            self.tree.keys[(*path, key)] = mark
            built[key] = self.build(value_node, (*path, key))
        return built

    def _check_key(self, node: yaml.Node, built: dict[str, Any], path: Path) -> tuple[str, str] | None:
        if not isinstance(node, yaml.ScalarNode):
            return "a key is a list or a mapping", "keys are text; a '{' that begins text needs quotes"
        if node.value == "<<" and not _is_quoted(node):
            return "the merge key '<<' is not supported", "write the keys out, or use a template"
        if node.value in built:
            first = self.tree.keys[(*path, node.value)]
            return f"key {node.value!r} is given twice", f"line {first.line} has the first, which counts"
        return None


class _Dumper(yaml.SafeDumper):
    """Never writes anchors: what is dumped is read by people."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump_yaml(data: Any) -> str:
    """Write plain data as YAML; texts that YAML 1.1 would take for something else are quoted."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))
