"""Fill the placeholders of a command: `{port}`, `{train.nodelist}`; `{{` and `}}` escape.

Twice per text, each placeholder exactly once: the plan fills what it knows and keeps the
rest, the node fills that. Values never become text that is read again. Standard library only.
"""

import re
from collections.abc import Mapping, Set

_TOKEN = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}|[{}]")


class PlaceholderError(ValueError):
    """A placeholder that nobody can fill; the message names it and what there is."""


def expand(text: str, mapping: Mapping[str, str], keep: Set[str] = frozenset()) -> str:
    """Replace the placeholders of `mapping`, and leave those of `keep` for a later call.

    Shape:  `keep` empty: the final text, `{{` has become `{`. Else still a template: literal braces, also those
            of values, come out doubled, so that the last call gives them back as they were. A brace that is
            no placeholder (`{"a": 1}`) is itself.
    Errors: PlaceholderError for a name in neither.
    """

    def fill(match: re.Match[str]) -> str:
        token, name = match[0], match[1]
        if name is None:
            return token[0] * 2 if keep else token[0]
        if name in keep:
            return token
        if name not in mapping:
            known = ", ".join(f"{{{word}}}" for word in sorted({*mapping, *keep}))
            raise PlaceholderError(f"cannot fill {token}: there is {known or 'no placeholder here'}")
        value = mapping[name]
        return value.replace("{", "{{").replace("}", "}}") if keep else value

    return _TOKEN.sub(fill, text)


def expand_known(text: str, mapping: Mapping[str, str]) -> str:
    """Replace the placeholders of `mapping` in a command we did not ask for: the trainer's.

    Shape: everything else stays as it was typed: `${HOME}`, `awk '{print $1}'`, JSON. `{{name}}` gives `{name}`.
    """

    def fill(match: re.Match[str]) -> str:
        name = match[2]
        if name not in mapping:
            return match[0]
        if match[1] and match[3]:
            return f"{{{name}}}"
        return f"{match[1]}{mapping[name]}{match[3]}"

    return re.sub(r"(\{?)\{([A-Za-z_][A-Za-z0-9_.-]*)\}(\}?)", fill, text)


def find_placeholders(text: str) -> tuple[str, ...]:
    """List the names of the placeholders of a text, in order."""
    return tuple(match[1] for match in _TOKEN.finditer(text) if match[1])
