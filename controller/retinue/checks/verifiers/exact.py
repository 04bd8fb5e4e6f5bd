"""Text: is the response, after normalising, the gold or one of the golds?

Gold:   text, a number, or a list of acceptable ones.
args:   extract: whole | last_line | boxed | answer (default whole; answer is `<answer>…</answer>`);
        ignore_case (default true), ignore_punctuation, ignore_articles (default false);
        whitespace: collapse | keep | remove (default collapse); unicode: true folds width and ligatures (NFKC).
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Any, Literal

from retinue.checks.plugin import Score, Unverifiable
from retinue.checks.verifiers.extract import Unclosed, find_boxed, find_last_line, find_tag
from retinue.checks.verifiers.options import quote, read_options
from retinue.terms.record import Record

_ARTICLES = re.compile(r"\b(?:a|an|the)\b", re.IGNORECASE)


class ExactOptions(Record, frozen=True, forbid_unknown_fields=True):
    """Arguments of `exact`."""

    extract: Literal["whole", "last_line", "boxed", "answer"] = "whole"
    ignore_case: bool = True
    ignore_punctuation: bool = False
    ignore_articles: bool = False
    whitespace: Literal["collapse", "keep", "remove"] = "collapse"
    unicode: bool = True


@dataclass(frozen=True)
class ExactGold:
    """What `prepare` made of gold and arguments."""

    normalised: dict[str, str]
    """Normalised gold -> gold as it was given."""
    options: ExactOptions


def prepare(gold: Any, args: dict[str, Any]) -> ExactGold:
    """Read gold and arguments.

    Errors: Unverifiable for a gold that is neither text nor number, or of which normalising leaves nothing.
    """
    options = read_options(args, ExactOptions)
    golds = gold if isinstance(gold, list) else [gold]
    if not golds:
        raise Unverifiable("gold is an empty list; give at least one acceptable text")
    normalised: dict[str, str] = {}
    for one in golds:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise Unverifiable(f"gold {quote(one)} is a {type(one).__name__}; give text, a number, or a list of them")
        text = normalise(str(one), options)
        if not text:
            raise Unverifiable(f"gold {quote(one)} is empty after normalising; every silence would match it")
        normalised.setdefault(text, str(one))
    return ExactGold(normalised, options)


def normalise(text: str, options: ExactOptions) -> str:
    """Take away the differences that do not count."""
    if options.unicode:
        text = unicodedata.normalize("NFKC", text)
    if options.ignore_case:
        text = text.casefold()
    if options.ignore_punctuation:
        text = "".join(" " if unicodedata.category(char).startswith("P") else char for char in text)
    if options.ignore_articles:
        text = _ARTICLES.sub(" ", text)
    if options.whitespace == "keep":
        return text
    return ("" if options.whitespace == "remove" else " ").join(text.split())


def check(response: str, gold: Any, args: dict[str, Any]) -> Score:
    """Compare normalised text."""
    prepared = gold if isinstance(gold, ExactGold) else prepare(gold, args)
    try:
        found = _extract(response, prepared.options)
    except Unclosed as error:
        return 0.0, str(error)
    if found is None:
        return 0.0, f"no {prepared.options.extract} in the response"
    text = normalise(found, prepared.options)
    if text in prepared.normalised:
        return 1.0, f"{quote(found)} is {quote(prepared.normalised[text])}"
    return 0.0, f"{quote(found)} is not {' or '.join(quote(one) for one in list(prepared.normalised.values())[:3])}"


def _extract(response: str, options: ExactOptions) -> str | None:
    match options.extract:
        case "whole":
            return response
        case "last_line":
            return find_last_line(response)
        case "boxed":
            return next(reversed(find_boxed(response)), None)
        case "answer":
            return find_tag(response, "answer")


def warm() -> None:
    """Run once; nothing here is slow the first time."""
    check("Yes.", prepare("yes", {"ignore_punctuation": True}), {})


check.prepare = prepare  # type: ignore[attr-defined]
check.warm = warm  # type: ignore[attr-defined]
