"""What a caller asks, checked before anything is sent, and its bytes on the wire.

A wrong argument raises here, at the call, with the row it is in. Nothing raises later.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from retinue.terms.record import Record

BODY_BYTES_MAX = 16 * 1024 * 1024
"""What a checks service takes at most; a longer one would be answered 413."""


class Check(Record, frozen=True):
    """One check, as `check_many` takes it; a mapping with the same keys does as well."""

    verifier: str
    response: str
    """The policy's output, whatever it is."""
    gold: Any = None
    """JSON: from the dataset."""
    args: Mapping[str, Any] = {}
    timeout_s: float | None = None
    """None: the verifier's own."""
    rollout_id: str | None = None


class Question(Record, frozen=True):
    """A check whose arguments are right."""

    check: Check
    head: str
    """The JSON object without its response and its closing brace."""


def check_question(given: Check | Mapping[str, Any], where: str = "") -> Question:
    """Check one question's arguments.

    Shape:  `where` is put before the message, `row 3: `.
    Errors: TypeError, ValueError: the caller's program is wrong.
    """
    check = given if isinstance(given, Check) else _read_mapping(given, where)
    for name in ("verifier", "response"):
        if not isinstance(getattr(check, name), str):
            raise TypeError(f"{where}{name} is a {_name_type(getattr(check, name))}, not a str")
    if check.rollout_id is not None and not isinstance(check.rollout_id, str):
        raise TypeError(f"{where}rollout_id is a {_name_type(check.rollout_id)}, not a str")
    if not check.verifier:
        raise ValueError(f"{where}verifier is empty")
    if not isinstance(check.args, Mapping):
        raise TypeError(f"{where}args is a {_name_type(check.args)}, not a mapping")
    check_seconds(check.timeout_s, f"{where}timeout_s")
    fields = {name: getattr(check, name) for name in ("verifier", "gold", "timeout_s", "rollout_id")}
    fields["args"] = dict(check.args)
    try:
        head = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(f"{where}gold and args must be JSON: {error}") from None
    return Question(check, head.removesuffix("}"))


def check_questions(given: Iterable[Check | Mapping[str, Any]]) -> list[Question]:
    """Check the arguments of many, all before the first is sent.

    Errors: as `check_question`, with the row's number.
    """
    return [check_question(one, f"row {index}: ") for index, one in enumerate(given)]


def check_seconds(value: float | None, name: str) -> None:
    """Check a duration that may be left out.

    Errors: TypeError, ValueError.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a {_name_type(value)}, not seconds")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}, not a number of seconds above 0")


def build_body(questions: list[Question], is_single: bool) -> bytes:
    """Build the body of `POST /v1/check`, or of `POST /v1/checks`.

    A lone surrogate, which has no UTF-8, goes as a JSON escape.
    """
    objects = [f'{question.head}, "response": {_dump(question.check.response)}}}' for question in questions]
    text = objects[0] if is_single else f'{{"checks": [{", ".join(objects)}]}}'
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(json.loads(text)).encode()


def _dump(response: str) -> str:
    return json.dumps(response, ensure_ascii=False)


def _read_mapping(given: Mapping[str, Any], where: str) -> Check:
    if not isinstance(given, Mapping):
        raise TypeError(f"{where}a check is a mapping or a Check, not a {_name_type(given)}")
    fields = dict(given)
    if fields.get("args", {}) is None:
        fields["args"] = {}
    unknown = sorted(set(fields) - set(Check.__struct_fields__))
    if unknown:
        raise TypeError(f"{where}unknown key {unknown[0]!r}; there are {', '.join(Check.__struct_fields__)}")
    missing = [name for name in ("verifier", "response") if name not in fields]
    if missing:
        raise TypeError(f"{where}{missing[0]} is missing")
    return Check(**fields)


def _name_type(value: object) -> str:
    return type(value).__name__
