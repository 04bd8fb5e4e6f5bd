"""Finds the answer in a response: the last box, tag, fenced block or line.

Every search is linear in the length of the response: ten megabytes of anything
cost milliseconds. Never decides what an answer is worth.
"""

import re

_BOX = re.compile(r"\\f?box(?:ed)?(?![a-zA-Z])\s*")
_BARE = re.compile(r"[^\s$.,;}]+(?:\.\d+)?")
_BETWEEN = re.compile(
    r"[\s$]*(?:\\\)|\\\])?\s*(?:,|;|,?\s*and|,?\s*or|\\text\s*\{\s*,?\s*(?:and|or)\s*\})\s*(?:\\\(|\\\[)?[\s$]*"
    r"(?:[a-zA-Z](?:_\{?\d\}?)?\s*=\s*)?"
)
_BETWEEN_MAX = 60
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


class Unclosed(ValueError):
    """The last box is not closed: the response was cut off in the middle of its answer."""


def find_boxed(response: str) -> list[str]:
    r"""Find the contents of the last `\boxed{}`, or of the last few that are one answer (`\boxed{2} or \boxed{3}`).

    Shape:  in order, without repetition; empty when there is no box with something in it.
    Errors: Unclosed when the last one has no closing brace.
    """
    contents: list[str] = []
    following: int | None = None
    for match in reversed(list(_BOX.finditer(response))):
        content, end = _read_box(response, match.end())
        if not content:
            continue
        if following is not None and not _belongs(response, end, following):
            break
        if content not in contents:
            contents.insert(0, content)
        following = match.start()
    return contents


def _belongs(response: str, end: int, following: int) -> bool:
    return end <= following <= end + _BETWEEN_MAX and _BETWEEN.fullmatch(response[end:following]) is not None


def _read_box(response: str, start: int) -> tuple[str, int]:
    if not response.startswith("{", start):
        bare = _BARE.match(response, start)
        return (bare.group(), bare.end()) if bare else ("", start)
    depth = 0
    for match in _BRACE.finditer(response, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return response[start + 1 : match.start()].strip(), match.end()
    raise Unclosed(r"the last \boxed{ is not closed")


def find_tag(response: str, tag: str) -> str | None:
    """Find what the last `<tag>…</tag>` holds."""
    end = response.rfind(f"</{tag}>")
    start = response.rfind(f"<{tag}>", 0, max(end, 0))
    return None if start < 0 else response[start + len(tag) + 2 : end].strip()


def find_fence(response: str, languages: tuple[str, ...]) -> str | None:
    """Find the last fenced block (three backticks) that is marked with one of the languages; "" is an unmarked one."""
    lines = response.splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    found = None
    for opening, closing in zip(fences[::2], fences[1::2], strict=False):
        if lines[opening].strip().removeprefix("```").strip().lower() in languages:
            found = "\n".join(lines[opening + 1 : closing])
    return found


def find_last_line(response: str) -> str:
    """Find the last line that is not blank."""
    return next((line.strip() for line in reversed(response.splitlines()) if line.strip()), "")


def find_nesting(text: str) -> int:
    """Count how deep brackets of any kind are opened inside each other."""
    depth = deepest = 0
    for match in re.finditer(r"[(\[{]|[)\]}]", text):
        depth = depth + 1 if match.group() in "([{" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest
