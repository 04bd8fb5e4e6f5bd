"""From bytes of a terminal to keys, and from a key to what it changes. Pure."""

import re
from collections.abc import Sequence

from retinue.cli.top_rows import find_index, find_next_sort
from retinue.cli.top_sight import NODES, SERVICES, Choice
from retinue.terms.record import Record, replace

SEQUENCES = {
    "A": "up",
    "B": "down",
    "C": "right",
    "D": "left",
    "H": "home",
    "F": "end",
    "1~": "home",
    "7~": "home",
    "4~": "end",
    "8~": "end",
    "5~": "page up",
    "6~": "page down",
}
PLAIN = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "back", "\x08": "back", "\x1b": "esc"}
SEQUENCE = re.compile(r"\x1b(?:\[([0-9;]*[@-~])|O(.))")
UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*|O)?\Z")
"""The beginning of a sequence whose rest is still on its way; a lone ESC looks the same."""

HELP = (
    ("q", "quit; the run goes on"),
    ("j k, arrows, PgUp PgDn, g G", "move"),
    ("tab", "move among services, or among nodes"),
    ("enter, f", "the log of a service or replica, as it grows"),
    ("esc, enter, f", "back"),
    ("s", "sort: manifest, phase, restarts, in flight, name"),
    ("a", "all replicas, or those that are not ready"),
    ("r", "restart a service or replica (asks first)"),
    ("?", "this page"),
)

QUIT, RESTART = "quit", "restart "


class Shown(Record, frozen=True):
    """What the keys move in."""

    services: Sequence[str]
    """Keys of the rows of services and replicas, in their order."""
    nodes: Sequence[str]
    page: int = 10
    """Rows that one page is."""
    is_all: bool = True
    """Whether all replicas are among the rows."""


def parse_keys(data: str, is_all: bool = False) -> tuple[list[str], str]:
    """Split what a terminal sent into keys; returns them and an unfinished rest.

    Shape: `is_all`: nothing more comes, an unfinished sequence is what it is: ESC. Unknown sequences are no key.
    """
    keys = []
    while data:
        if found := SEQUENCE.match(data):
            keys.append(SEQUENCES.get(found[1] or found[2], ""))
            data = data[found.end() :]
            continue
        if not is_all and UNFINISHED.match(data):
            break
        keys.append(PLAIN.get(data[0], data[0] if data[0].isprintable() else ""))
        data = data[1:]
    return [key for key in keys if key], data


def press(choice: Choice, key: str, shown: Shown) -> tuple[Choice, str]:
    """Take one key; returns the new choice and what is to be done: nothing, `quit`, or `restart TARGET`."""
    choice = replace(choice, said="")
    if choice.asks:
        return replace(choice, asks=""), RESTART + choice.asks if key in ("y", "Y") else ""
    if choice.shows_help:
        return replace(choice, shows_help=False), ""
    match key:
        case "q":
            return choice, QUIT
        case "?":
            return replace(choice, shows_help=True), ""
        case "r":
            return _ask_restart(choice, shown.services), ""
        case "s":
            return replace(choice, sort=find_next_sort(choice.sort)), ""
        case "a":
            return replace(choice, shows_all=not shown.is_all), ""
    if choice.focus:
        return replace(choice, focus="") if key in ("esc", "enter", "f", "back", "left") else choice, ""
    match key:
        case "enter" | "f" | "right":
            selected = get_selected(choice, shown.services)
            return replace(choice, focus=selected) if choice.pane == SERVICES else choice, ""
        case "tab":
            return replace(choice, pane=NODES if choice.pane == SERVICES else SERVICES), ""
    if choice.pane == NODES:
        return replace(choice, node=_move(shown.nodes, choice.node, key, shown.page)), ""
    return replace(choice, service=_move(shown.services, choice.service, key, shown.page)), ""


def get_selected(choice: Choice, services: Sequence[str]) -> str:
    """The selected service or replica; empty when there is none at all."""
    return services[find_index(services, choice.service)] if services else ""


def _ask_restart(choice: Choice, services: Sequence[str]) -> Choice:
    target = choice.focus or (get_selected(choice, services) if choice.pane == SERVICES else "")
    return replace(choice, asks=target) if target else replace(choice, said="select a service first (tab)")


def _move(keys: Sequence[str], selected: str, key: str, page: int) -> str:
    steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page}
    if not keys:
        return ""
    index = find_index(keys, selected) + steps.get(key, 0)
    index = {"home": 0, "g": 0, "end": len(keys) - 1, "G": len(keys) - 1}.get(key, index)
    return keys[max(0, min(index, len(keys) - 1))]
