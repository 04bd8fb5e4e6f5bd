"""Whether what the model said is what the person would say: its own errors, named. Pure.

Says which rule was broken and never what was said: that may be the goal.
"""

import json
import re
from collections.abc import Collection
from enum import Enum
from typing import Any

from retinue.simulator.personas import Persona
from retinue.simulator.settings import ENDS, STOP
from retinue.terms.record import Record

RECITED_WORDS = 12
"""So many words of a goal in a row are recited, not said."""
_WORD = re.compile(r"\w+")
_ASSISTANT = (
    re.compile(r"\bas an? (?:ai|artificial intelligence|(?:large )?language model)\b", re.IGNORECASE),
    re.compile(
        r"\bI(?: am|['\u2019]m) an? (?:ai|artificial|large language|language|virtual) (?:model|assistant|agent)\b", re.I
    ),
    re.compile(r"\bhow (?:can|may) I (?:help|assist) you\b", re.IGNORECASE),
    re.compile(r"^\s*\W{0,3}(?:assistant|agent|system)\W{0,2}:", re.IGNORECASE | re.MULTILINE),
    re.compile(r"<\|?/?(?:im_start|im_end|system|assistant|user|eot_id|start_header_id)\|?>", re.IGNORECASE),
    re.compile(r"\bwhat you want \(the assistant does not know|\brules of this role\b", re.IGNORECASE),
)


class Slip(str, Enum):
    """What the model did wrong; each is an error of the simulator."""

    LEFT_ROLE = "simulator_left_role"
    """It spoke as the assistant, or recited what only it should read."""
    ENDED_EARLY = "simulator_ended_early"
    """It stopped before the persona's `turns_min`."""
    CONTEXT_FULL = "simulator_context_full"
    """The prompt did not fit, or the message broke off at its token limit."""
    UNREADABLE = "simulator_unreadable"
    """No text and no call, a call of a tool that is not there, or no answer of the API at all."""


class Slipped(Exception):
    """One attempt came to nothing."""

    def __init__(self, slip: Slip, why: str) -> None:
        self.slip = slip
        super().__init__(why)


class Said(Record, frozen=True):
    """One message of the user."""

    text: str
    calls: list[dict[str, Any]] = []
    usage: dict[str, int] = {}
    ended: str | None = None
    """`stop`, `transfer`, `out_of_scope`, `turn_limit`; None: it goes on."""


def find_end(text: str) -> str | None:
    """Find the first stop token in it."""
    found = [(text.find(token), token) for token in ENDS if token in text]
    return min(found)[1] if found else None


def check_said(text: str, persona: Persona, turn: int) -> str | None:
    """Check a text of the person's `turn`-th message; returns how it ended, None when it goes on.

    Errors: Slipped.
    """
    if any(pattern.search(text) for pattern in _ASSISTANT):
        raise Slipped(Slip.LEFT_ROLE, "it did not speak as the person")
    folded = text.casefold()
    if any(phrase.casefold() in folded for phrase in persona.never_says):
        raise Slipped(Slip.LEFT_ROLE, "it said what this person never says")
    if recites(text, persona.goal):
        raise Slipped(Slip.LEFT_ROLE, "it recited its instructions")
    token = find_end(text)
    if token == STOP and turn < persona.turns_min:
        raise Slipped(
            Slip.ENDED_EARLY, f"it stopped in message {turn}; this persona stops in {persona.turns_min} or later"
        )
    return ENDS[token] if token else None


def recites(text: str, goal: str, words: int = RECITED_WORDS) -> bool:
    """Tell whether so many words of the goal stand in the text in a row."""
    said, secret = _list_words(text), _list_words(goal)
    runs = {tuple(secret[at : at + words]) for at in range(len(secret) - words + 1)}
    return any(tuple(said[at : at + words]) in runs for at in range(len(said) - words + 1))


def check_calls(calls: list[dict[str, Any]], tools: Collection[str]) -> list[dict[str, Any]]:
    """Check the tools that it calls. Errors: Slipped."""
    checked = []
    for index, call in enumerate(calls):
        function = call.get("function")
        if not isinstance(function, dict) or function.get("name") not in tools:
            raise Slipped(Slip.UNREADABLE, "it called a tool that the user does not have")
        if not _is_object(function.get("arguments")):
            raise Slipped(Slip.UNREADABLE, "it called a tool with arguments that are no JSON object")
        name = call.get("id") if isinstance(call.get("id"), str) and call["id"] else f"call-{index}"
        kept = {"name": function["name"], "arguments": function["arguments"]}
        checked.append({"id": name, "type": "function", "function": kept})
    return checked


def _list_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _is_object(text: Any) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
