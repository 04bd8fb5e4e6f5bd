"""The trainer's command before there is a plan: whether its placeholders are ones. Pure.

The command is the user's: only what can be nothing but a mistake is refused.
"""

import difflib
from collections.abc import Iterable, Sequence

from retinue.errors import UsageError
from retinue.plan.expand import find_behind_dollar, find_misspelt
from retinue.plan.places import ALL

ATTRIBUTES = ("nodelist", "count")
"""What a command may ask of a group of nodes."""


def check_trainer_words(argv: Sequence[str], groups: Iterable[str]) -> list[str]:
    """Refuse misspelt placeholders; return what is not wrong, but worth knowing.

    Errors: UsageError names each of them, the nearest that is known, and all that are.
    """
    mapping = {f"{group}.{what}": "" for group in (*groups, ALL) for what in ATTRIBUTES}
    wrong = list(dict.fromkeys(name for word in argv for name in find_misspelt(word, mapping)))
    if wrong:
        raise UsageError("\n".join(_describe(name, list(mapping)) for name in wrong))
    behind = dict.fromkeys(name for word in argv for name in find_behind_dollar(word, mapping))
    return [
        f"trainer: ${{{name}}} is left as it is, a shell's variable; without the $ it is filled in" for name in behind
    ]


def _describe(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    nearest = f"did you mean {{{close[0]}}}? " if close else ""
    there = ", ".join(f"{{{key}}}" for key in known)
    return (
        f"cannot fill {{{name}}} in the trainer's command: {nearest}there is {there}; write {{{{{name}}}}} for "
        f"{{{name}}} itself"
    )
