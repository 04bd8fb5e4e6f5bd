# ruff: noqa: RUF001 - punctuation of other scripts is counted here
"""The constraints of `instruction`: what each may say, and whether a text keeps it.

Counting rules are plain and written down, so that a person counts the same.
Pure: text and constraint in, a complaint or nothing out.
"""

import json
import re
from typing import Literal, NoReturn

from retinue.terms.record import Record

_WORD = re.compile(r"\w+(?:['’\-]\w+)*")
_SENTENCE_END = re.compile(
    r"(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\be\.g)(?<!\bi\.e)[.!?…。！？]+[\"'”’)\]]*(?=\s|$)|(?<=[。！？])"
)
_BULLET = re.compile(r"^[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t]+\S", re.MULTILINE)
_COMMAS = re.compile(r"[,，、]")


class Constraint(Record, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """One thing that was asked of the response."""


class Counted(Constraint, frozen=True):
    """A constraint on how many there are."""

    min: int | None = None
    max: int | None = None
    exactly: int | None = None


class Words(Counted, frozen=True, tag="words"):
    """Runs of letters and digits; `don't` and `well-known` are one."""


class Sentences(Counted, frozen=True, tag="sentences"):
    """What ends in `. ! ? …` before a blank or the end, and what is left after the last of them."""


class Paragraphs(Counted, frozen=True, tag="paragraphs"):
    """Blocks of text between blank lines."""


class Bullets(Counted, frozen=True, tag="bullets"):
    """Lines that begin with `- * + •` or `1.` or `1)`."""


class Characters(Counted, frozen=True, tag="characters"):
    """Characters, blanks at both ends aside."""


class Keywords(Constraint, frozen=True, tag="keywords"):
    """Words or phrases that must, or must not, be there; whole words, case does not count."""

    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


class Frequency(Counted, frozen=True, tag="frequency", kw_only=True):
    """How often one word or phrase is there."""

    keyword: str


class StartsWith(Constraint, frozen=True, tag="starts_with"):
    """How it begins; blanks before it and case do not count."""

    text: str


class EndsWith(Constraint, frozen=True, tag="ends_with"):
    """How it ends; blanks after it and case do not count."""

    text: str


class IsJson(Constraint, frozen=True, tag="json"):
    """The whole is JSON; a fence around it is allowed."""


class NoCommas(Constraint, frozen=True, tag="no_commas"):
    """There is no comma."""


class Case(Constraint, frozen=True, tag="case"):
    """All letters are of one case; with `title`, each word of four letters or more begins with a capital."""

    case: Literal["upper", "lower", "title"]


AnyConstraint = (
    Words
    | Sentences
    | Paragraphs
    | Bullets
    | Characters
    | Keywords
    | Frequency
    | StartsWith
    | EndsWith
    | IsJson
    | NoCommas
    | Case
)


def check_constraint(constraint: AnyConstraint) -> str | None:
    """Say what is wrong with a constraint itself; None when it can be kept and can be broken."""
    match constraint:
        case Frequency(keyword=keyword) if not keyword.strip():
            return "keyword is empty"
        case Counted(min=None, max=None, exactly=None):
            return "give min, max or exactly"
        case Counted(min=low, max=high, exactly=exactly):
            given = [count for count in (low, high, exactly) if count is not None]
            if any(count < 0 for count in given):
                return "a count is 0 or more"
            if exactly is not None and len(given) > 1:
                return "give exactly alone, or min and max"
            return f"min {low} is above max {high}" if low is not None and high is not None and low > high else None
        case Keywords(present=present, absent=absent):
            if not all(word.strip() for word in present + absent) or not present + absent:
                return "give present or absent, and no empty keyword"
        case StartsWith(text=text) | EndsWith(text=text) if not text.strip():
            return "text is empty"
    return None


def find_complaint(constraint: AnyConstraint, response: str) -> str | None:
    """Say how the response breaks a constraint; None when it keeps it."""
    match constraint:
        case Counted():
            return _complain_count(constraint, *_count(constraint, response))
        case Keywords(present=present, absent=absent):
            missing = [word for word in present if not _find_phrase(word, response)]
            unwanted = [word for word in absent if _find_phrase(word, response)]
            found = [f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(unwanted)}"] * bool(unwanted)
            return "; ".join(found) or None
        case StartsWith(text=text):
            kept = response.strip().casefold().startswith(text.strip().casefold())
            return None if kept else f"does not start with {text!r}"
        case EndsWith(text=text):
            kept = response.strip().casefold().endswith(text.strip().casefold())
            return None if kept else f"does not end with {text!r}"
        case IsJson():
            return None if _is_json(response) else "is not JSON"
        case NoCommas():
            commas = len(_COMMAS.findall(response))
            return f"has {commas} commas" if commas else None
        case Case(case=case):
            return None if _has_case(response, case) else f"is not all in {case} case"


def _count(constraint: Counted, response: str) -> tuple[int, str]:
    match constraint:
        case Words():
            return len(_WORD.findall(response)), "words"
        case Sentences():
            return sum(bool(_WORD.search(part)) for part in _SENTENCE_END.split(response)), "sentences"
        case Paragraphs():
            return sum(bool(part.strip()) for part in re.split(r"\n[^\S\n]*\n", response)), "paragraphs"
        case Bullets():
            return len(_BULLET.findall(response)), "bullets"
        case Frequency(keyword=keyword):
            return len(_find_phrase(keyword, response)), f"times {keyword!r}"
    return len(response.strip()), "characters"


def _complain_count(asked: Counted, count: int, noun: str) -> str | None:
    if asked.exactly is not None and count != asked.exactly:
        return f"has {count} {noun}, not {asked.exactly}"
    if asked.min is not None and count < asked.min:
        return f"has {count} {noun}, fewer than {asked.min}"
    if asked.max is not None and count > asked.max:
        return f"has {count} {noun}, more than {asked.max}"
    return None


def _find_phrase(phrase: str, response: str) -> list[str]:
    words = r"\s+".join(re.escape(word) for word in phrase.split())
    return re.findall(rf"(?<!\w){words}(?!\w)", response, re.IGNORECASE)


def _is_json(response: str) -> bool:
    text = response.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n```", text, re.DOTALL)
    try:
        json.loads(fenced.group(1) if fenced else text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _has_case(response: str, case: str) -> bool:
    letters = [char for char in response if char.isalpha()]
    if case == "upper":
        return bool(letters) and not any(char.islower() for char in letters)
    if case == "lower":
        return bool(letters) and not any(char.isupper() for char in letters)
    words = [word for word in _WORD.findall(response) if len(word) > 3 and word[0].isalpha()]
    return bool(words) and all(word[0].isupper() for word in words)
