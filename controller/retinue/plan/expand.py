"""Fill the placeholders of a command: `{port}`, `{train.nodelist}`; `{{` and `}}` escape.

Twice per text, each placeholder exactly once: the plan fills what it knows and keeps the
rest, the node fills that. Values never become text that is read again. Standard library only.
"""

import re
from collections.abc import Mapping, Set

_TOKEN = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_.-]*)\}|[{}]")
_KNOWN = re.compile(r"(?P<dollar>\$?)(?P<open>\{?)\{(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\}(?P<close>\}?)")


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

    Shape: everything else stays as it was typed: `${HOME}`, `${train.lr}`, `awk '{print $1}'`, JSON. `{{name}}` gives
           `{name}`, also for a name that `find_misspelt` finds.
    """

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        if match["open"] and match["close"]:
            return f"{match['dollar']}{{{name}}}" if name in mapping or _is_ours(name, mapping) else match[0]
        if name not in mapping or _is_of_shell(match):
            return match[0]
        return f"{match['dollar']}{match['open']}{mapping[name]}{match['close']}"

    return _KNOWN.sub(fill, text)


def find_misspelt(text: str, mapping: Mapping[str, str]) -> tuple[str, ...]:
    """List what was meant as a placeholder of `mapping` in a command we did not ask for, and is none.

    Shape: of `{first.second}` one word is ours and the other is not: `{trian.nodelist}`, `{train.nodes}`. Escaped ones
           are none, nor is `${train.lr}`, which is OmegaConf's.
    """
    return tuple(
        match["name"]
        for match in _KNOWN.finditer(text)
        if match["name"] not in mapping
        and _is_ours(match["name"], mapping)
        and not (match["open"] and match["close"])
        and not _is_of_shell(match)
    )


def find_behind_dollar(text: str, mapping: Mapping[str, str]) -> tuple[str, ...]:
    """List the names of `mapping` that are written as a shell's variables, `${train.nodelist}`, and so not filled."""
    return tuple(m["name"] for m in _KNOWN.finditer(text) if m["name"] in mapping and _is_of_shell(m))


def _is_of_shell(match: re.Match[str]) -> bool:
    return bool(match["dollar"] and not match["open"])


def _is_ours(name: str, mapping: Mapping[str, str]) -> bool:
    first, _, second = name.partition(".")
    if not second or "." in second:
        return False
    return any(first == one or second == other for one, _, other in (key.partition(".") for key in mapping) if other)


def find_placeholders(text: str) -> tuple[str, ...]:
    """List the names of the placeholders of a text, in order."""
    return tuple(match[1] for match in _TOKEN.finditer(text) if match[1])
