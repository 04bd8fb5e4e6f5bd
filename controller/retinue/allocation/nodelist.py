"""Slurm's node lists: `node[001-003,07]-ib,b1` to names and back.

Order and padding are kept; several brackets and suffixes are understood, which
`scontrol show hostnames` before 23.11 answers with "Invalid hostlist" and exit code 0.
Never asks Slurm, never guesses: what cannot be read is refused with its place.
"""

import re
from collections.abc import Iterable
from itertools import product

from retinue.errors import AllocationError

MAX_NAMES = 65_536
"""Slurm's own MAX_SLURM_NODES; a longer list is a typing mistake, not an allocation."""
MAX_DIGITS = 18
"""Longer digit runs are no node numbers."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_LITERAL = re.compile(r"[A-Za-z0-9_.-]+")
_RANGE = re.compile(rf"([0-9]{{1,{MAX_DIGITS}}})(?:-([0-9]{{1,{MAX_DIGITS}}}))?\Z")
_TAIL = re.compile(rf"(.*?)([0-9]{{1,{MAX_DIGITS}}})\Z")


def parse_nodelist(text: str) -> tuple[str, ...]:
    """Expand a node list into names.

    Shape:  in the order written; of several brackets the last one varies fastest.
    Errors: AllocationError shows the text and the column of what cannot be read.
    Source: hostlist expressions, scontrol(1) `show hostnames`.
    """
    names: list[str] = []
    for start, item in _split_items(text):
        names.extend(_expand_item(text, start, item, MAX_NAMES - len(names)))
    return tuple(names)


def parse_distinct_nodelist(text: str) -> tuple[str, ...]:
    """Expand a node list that stands for an allocation: no node twice.

    Errors: AllocationError as `parse_nodelist`, and for a repeated name.
    """
    names = parse_nodelist(text)
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise AllocationError(f"cannot read node list {text!r}: it names '{name}' twice")
        seen.add(name)
    return names


def compress_nodelist(names: Iterable[str]) -> str:
    """Write names as a node list that every Slurm can read back in the same order.

    Shape:  only trailing numbers are folded: a suffix after a bracket is refused by srun before 23.11.
    Errors: AllocationError for a name that is no node name.
    """
    items: list[str] = []
    prefix, tails = "", list[str]()
    for name in names:
        if not _NAME.match(name):
            raise AllocationError(f"cannot write node list: {name!r} is not a node name")
        match = _TAIL.match(name)
        head, tail = (match[1], match[2]) if match else (name, "")
        if tails and tail and head == prefix:
            tails.append(tail)
            continue
        items.extend(_fold(prefix, tails))
        prefix, tails = head, [tail] if tail else []
        if not tail:
            items.append(name)
    items.extend(_fold(prefix, tails))
    return ",".join(items)


def _fold(prefix: str, tails: list[str]) -> list[str]:
    """Write `prefix` with its numbers as at most one item."""
    if len(tails) < 2:
        return [prefix + tail for tail in tails]
    spans: list[list[str]] = []
    for tail in tails:
        # A range counts up by one and pads to the width of its first number.
        if spans and tail == str(int(spans[-1][-1]) + 1).zfill(len(spans[-1][0])):
            spans[-1].append(tail)
        else:
            spans.append([tail])
    return [f"{prefix}[{','.join(span[0] if len(span) == 1 else f'{span[0]}-{span[-1]}' for span in spans)}]"]


def _split_items(text: str) -> list[tuple[int, str]]:
    """Cut at the commas outside brackets; each item with its offset."""
    items: list[tuple[int, str]] = []
    start = depth = 0
    for at, char in enumerate(text):
        if char == "[" and depth:
            raise _unreadable(text, at, "a bracket inside a bracket")
        if char == "]" and not depth:
            raise _unreadable(text, at, "']' without '['")
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            items.append((start, text[start:at]))
            start = at + 1
    if depth:
        raise _unreadable(text, text.rindex("["), "'[' without ']'")
    items.append((start, text[start:]))
    return items


def _expand_item(text: str, start: int, item: str, room: int) -> list[str]:
    """Expand one item, `a[1-2]b[3-4]`, into at most `room` names."""
    if not item:
        raise _unreadable(text, start, "an empty name")
    parts: list[list[str]] = []
    count, at = 1, start
    # Odd pieces are what stood in brackets.
    for number, piece in enumerate(re.split(r"[\[\]]", item)):
        if number % 2:
            spans = _parse_ranges(text, at, piece)
            count *= sum(last - first + 1 for first, last, _ in spans)
            if count > room:
                raise _unreadable(text, start, f"more than {MAX_NAMES} names")
            parts.append([str(n).zfill(width) for first, last, width in spans for n in range(first, last + 1)])
        elif piece:
            literal = _LITERAL.match(piece)
            if literal is None or literal.end() < len(piece):
                bad = literal.end() if literal else 0
                raise _unreadable(text, at + bad, f"{piece[bad]!r} is not part of a node name")
            parts.append([piece])
        at += len(piece) + 1
    if count > room:
        raise _unreadable(text, start, f"more than {MAX_NAMES} names")
    names = ["".join(words) for words in product(*parts)]
    if not _NAME.match(names[0]):
        raise _unreadable(text, start, f"a node name does not begin with {names[0][0]!r}")
    return names


def _parse_ranges(text: str, start: int, body: str) -> list[tuple[int, int, int]]:
    """Read what stands in one bracket as (first, last, padded width)."""
    spans: list[tuple[int, int, int]] = []
    at = start
    for word in body.split(","):
        match = _RANGE.match(word)
        if match is None:
            raise _unreadable(text, at, f"{word!r} is not a number or a range" if word else "an empty range")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _unreadable(text, at, f"the range {word!r} runs backwards")
        spans.append((first, last, len(match[1])))
        at += len(word) + 1
    return spans


def _unreadable(text: str, at: int, cause: str) -> AllocationError:
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    return AllocationError(f"cannot read node list {shown!r}: {cause} at column {at + 1}")
