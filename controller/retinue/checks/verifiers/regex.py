r"""A pattern: does the response match it, or does what it captures equal the gold?

Gold:   a pattern (or a list, any of which may match), Python's `re`; with args.pattern: the text that the captured
        group must equal, or a list of acceptable ones.
args:   mode: search | fullmatch (default search; not with pattern); flags: list of ignorecase, multiline, dotall,
        verbose, ascii; pattern: one pattern for all rows; group: which group of its last match (default 1).

Guards against no runaway pattern: it hangs, and is killed from outside as any hang.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from retinue.checks.plugin import Score, Unverifiable
from retinue.checks.verifiers.options import quote, read_options
from retinue.terms.record import Record

Flag = Literal["ignorecase", "multiline", "dotall", "verbose", "ascii"]


class RegexOptions(Record, frozen=True, forbid_unknown_fields=True):
    """Arguments of `regex`."""

    mode: Literal["search", "fullmatch"] = "search"
    flags: tuple[Flag, ...] = ()
    pattern: str | None = None
    group: int | str = 1


@dataclass(frozen=True)
class RegexGold:
    """What `prepare` made of gold and arguments."""

    patterns: tuple[re.Pattern[str], ...]
    expected: tuple[str, ...]
    """What the group of args.pattern must equal; empty when the gold is the pattern."""
    options: RegexOptions


def prepare(gold: Any, args: dict[str, Any]) -> RegexGold:
    """Read gold and arguments, and compile.

    Errors: Unverifiable names the pattern that does not compile and where, or the group it has not.
    """
    options = read_options(args, RegexOptions)
    texts = gold if isinstance(gold, list) else [gold]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise Unverifiable(f"gold {quote(gold)} is not text; give a pattern (with args.pattern: the text to equal)")
    if options.pattern is None and not all(texts):
        raise Unverifiable("gold has an empty pattern: every response would match it")
    if options.pattern is None:
        return RegexGold(tuple(_compile(text, options) for text in texts), (), options)
    pattern = _compile(options.pattern, options)
    known = range(pattern.groups + 1) if isinstance(options.group, int) else pattern.groupindex
    if options.group not in known:
        raise Unverifiable(f"args: pattern {quote(options.pattern)} has no group {options.group!r}")
    return RegexGold((pattern,), tuple(text.strip() for text in texts), options)


def _compile(text: str, options: RegexOptions) -> re.Pattern[str]:
    flags = re.NOFLAG
    for flag in options.flags:
        flags |= re.RegexFlag[flag.upper()]
    try:
        return re.compile(text, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unverifiable(f"pattern {quote(text)} does not compile: {error}") from None


def check(response: str, gold: Any, args: dict[str, Any]) -> Score:
    """Match the response."""
    prepared = gold if isinstance(gold, RegexGold) else prepare(gold, args)
    if prepared.expected:
        return _check_group(response, prepared)
    for pattern in prepared.patterns:
        match = pattern.fullmatch(response) if prepared.options.mode == "fullmatch" else pattern.search(response)
        if match:
            return 1.0, f"{quote(match.group())} matches {quote(pattern.pattern)}"
    return 0.0, f"no match of {' or '.join(quote(pattern.pattern) for pattern in prepared.patterns[:3])}"


def _check_group(response: str, gold: RegexGold) -> Score:
    last = None
    for match in gold.patterns[0].finditer(response):
        last = match
    if last is None:
        return 0.0, f"no match of {quote(gold.patterns[0].pattern)}"
    found = (last.group(gold.options.group) or "").strip()
    if found in gold.expected:
        return 1.0, f"{quote(found)} equals the gold"
    return 0.0, f"{quote(found)} is not {' or '.join(quote(one) for one in gold.expected[:3])}"


def warm() -> None:
    """Run once; nothing here is slow the first time."""
    check("ab", prepare("b$", {}), {})


check.prepare = prepare  # type: ignore[attr-defined]
check.warm = warm  # type: ignore[attr-defined]
