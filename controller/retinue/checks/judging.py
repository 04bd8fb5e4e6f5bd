"""Run one verifier on one response and turn whatever it does into a record.

A boundary: what runs below may raise anything, return anything, and be written by the policy. What
is raised by `prepare` is the dataset's fault, what is raised by `check` the response's; a process that
ends instead is seen from outside. Returned objects are turned into plain numbers and text in here too,
because that may run their code.
"""

import math
import traceback
from typing import Any

from retinue.checks.plugin import Unverifiable, Verifier
from retinue.checks.records import Judged
from retinue.terms.record import to_json

_ENVELOPE_BYTES = 256
"""Of a result's JSON without its text."""
_WORST_ESCAPE = 6
"""Bytes of JSON for one byte of text: a control character is `\\u0000`."""


def prepare_gold(verifier: Verifier, gold: Any, args: dict[str, Any], limit_bytes: int) -> tuple[Any, str | None]:
    """Let the verifier prepare the gold: (what check gets, None), or (None, why it is rejected)."""
    prepare = getattr(verifier, "prepare", None)
    if prepare is None:
        return gold, None
    try:
        return prepare(gold, args), None
    except BaseException as error:  # noqa: BLE001 - SystemExit and library timeouts are the dataset's fault too
        return None, _describe(error, limit_bytes)


def judge(verifier: Verifier, response: str, gold: Any, args: dict[str, Any], limit_bytes: int) -> Judged:
    """Ask the verifier; the nonce of the result is still empty.

    Shape:  a finite score and a reason, or score 0.0 and the error in words.
    """
    answer: Any = None
    is_answered = False
    try:
        answer = verifier(response, gold, args)
        is_answered = True
        score, reason = _read_score(answer)
    except BaseException as error:  # noqa: BLE001 - nothing that a response does may look like our fault
        is_bug = isinstance(error, TypeError) if is_answered else isinstance(error, ImportError)
        return Judged(nonce="", score=0.0, error=_describe(error, limit_bytes), is_bug=is_bug)
    return Judged(nonce="", score=score, reason=cut_text(reason, limit_bytes))


def cut_text(text: str, limit_bytes: int) -> str:
    """Cut text so that a record with it stays within the limit as JSON; what UTF-8 cannot say is escaped."""
    room = max(0, limit_bytes - _ENVELOPE_BYTES)
    clean = _cut_utf8(text[:limit_bytes], room)
    return clean if len(to_json(clean)) <= room else _cut_utf8(clean, room // _WORST_ESCAPE)


def _cut_utf8(text: str, limit_bytes: int) -> str:
    return text.encode("utf-8", "backslashreplace")[:limit_bytes].decode("utf-8", "ignore")


def _read_score(answer: Any) -> tuple[float, str]:
    reason = ""
    if isinstance(answer, tuple):
        if len(answer) != 2:
            raise TypeError(f"the verifier returned {len(answer)} values, not a score and a reason")
        answer, reason = answer
    if isinstance(answer, str | bytes) or not hasattr(type(answer), "__float__"):
        raise TypeError(f"the verifier returned a {type(answer).__name__}, not a number")
    score = float(answer)
    if not math.isfinite(score):
        raise ValueError(f"the verifier's score is {score}, not a finite number")
    return score, reason if type(reason) is str else str.__str__(str(reason))


def _describe(error: BaseException, limit_bytes: int) -> str:
    """The last line of a traceback and where it was raised, whatever the exception's own code does."""
    try:
        if isinstance(error, Unverifiable):
            # Said to the dataset's author in words of ours: no class, no line.
            return cut_text(str(error), limit_bytes)
        text = "".join(traceback.format_exception_only(error)).strip()
        frames = traceback.extract_tb(error.__traceback__, limit=-1)
        where = f" ({frames[0].filename.rpartition('/')[2]}:{frames[0].lineno})" if frames else ""
        return cut_text(text + where, limit_bytes)
    except BaseException:  # noqa: BLE001 - its __str__ raised, or memory is still short
        return type(error).__name__[:100]
