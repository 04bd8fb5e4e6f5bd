"""One parameter of a template: its type, its bounds, and what is wrong with a value.

Never knows which template or manifest it is about: whoever asks adds the place.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_core import PydanticCustomError

from retinue.manifest.scalars import (
    Flag,
    Text,
    Texts,
    parse_bool,
    parse_duration,
    parse_size,
    parse_text,
    parse_texts,
    parse_whole,
    quote,
    refuse,
)
from retinue.manifest.service import CONFIG

Complaint = tuple[str, str]
"""What is wrong, and the hint."""

ParameterType = Literal["string", "integer", "number", "boolean", "duration", "size", "path", "list"]


def parse_number(value: Any) -> float:
    """Turn `0.9` into a number; infinities and `nan` are refused."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text, re.ASCII):
        raise refuse(f"is a number, not {quote(value)}", "write it like '0.9'")
    number = float(text)
    if not math.isfinite(number):
        raise refuse(f"{quote(value)} is too large for a number")
    return number


def parse_path(value: Any) -> str:
    """Accept a path that is not empty; relative ones are relative to where the run is started."""
    text = parse_text(value)
    if not text:
        raise refuse("is an empty path")
    return text


def _parse_list(value: Any) -> tuple[str, ...]:
    return tuple(parse_text(item) for item in parse_texts(value))


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    "string": parse_text,
    "integer": parse_whole,
    "number": parse_number,
    "boolean": parse_bool,
    "duration": parse_duration,
    "size": parse_size,
    "path": parse_path,
    "list": _parse_list,
}


class Parameter(BaseModel):
    """One parameter of a template."""

    model_config = CONFIG

    type: ParameterType
    """string, integer, number, boolean, duration, size, path or list (of texts)."""
    description: Text = ""
    """One sentence, shown by `retinue template show`."""
    default: Any = None
    """Used when the manifest gives none. Left out: the parameter is absent, and so is a value that is only it."""
    required: Flag = False
    """`true`: the manifest must give it."""
    choices: Texts = ()
    """Texts that are allowed. Left out: any."""
    min: Any = None
    """Smallest value of an integer, number, duration or size, written as one. Left out: no bound."""
    max: Any = None
    """Largest value of an integer, number, duration or size, written as one. Left out: no bound."""
    pattern: Text = ""
    """Regular expression that a string, and each text of a list, matches whole. Left out: any."""
    example: Text = ""
    """What is written instead, shown to whoever gave a text that `pattern` does not match."""


_BOUNDED = ("integer", "number", "duration", "size")
_WRITTEN = ("string", "path", "list")


def parse_typed(kind: ParameterType, value: Any) -> tuple[Any, Complaint | None]:
    """Type one value; what is wrong with it, or None."""
    try:
        return _PARSERS[kind](value), None
    except PydanticCustomError as error:
        context = error.context or {}
        return None, (str(context["what"]), str(context["hint"]))


def check_value(parameter: Parameter, written: Any, typed: Any) -> Complaint | None:
    """Hold a value of the right type against choices, bounds and pattern."""
    texts = typed if parameter.type == "list" else (written,)
    if parameter.choices and (odd := [text for text in texts if str(text) not in parameter.choices]):
        return f"is {' or '.join(parameter.choices)}, not {quote(odd[0])}", ""
    low, high = _parse_bound(parameter, parameter.min), _parse_bound(parameter, parameter.max)
    if low is not None and typed < low:
        return f"must be at least {parameter.min}, not {quote(written)}", _describe_range(parameter)
    if high is not None and typed > high:
        return f"must be at most {parameter.max}, not {quote(written)}", _describe_range(parameter)
    if parameter.pattern:
        odd = [text for text in texts if not re.fullmatch(parameter.pattern, str(text))]
        if odd:
            return f"{quote(odd[0])} has no meaning here", f"write it like {(parameter.example or parameter.pattern)!r}"
    return None


def check_limits(parameter: Parameter) -> dict[str, Complaint]:
    """Find what is wrong with a parameter's own bounds and pattern, by key."""
    found: dict[str, Complaint] = {}
    for key, value in (("min", parameter.min), ("max", parameter.max)):
        if value is not None and parameter.type not in _BOUNDED:
            found[key] = (f"a {parameter.type} has no bounds", f"{', '.join(_BOUNDED)} have")
        elif value is not None and (complaint := parse_typed(parameter.type, value)[1]):
            found[key] = complaint
    low, high = (
        (None, None) if found else (_parse_bound(parameter, parameter.min), _parse_bound(parameter, parameter.max))
    )
    if low is not None and high is not None and low > high:
        found["max"] = (f"{parameter.max} is below the smallest value, {parameter.min}", "")
    if parameter.pattern and parameter.type not in _WRITTEN:
        found["pattern"] = (f"a {parameter.type} has no pattern", f"{', '.join(_WRITTEN)} have")
    elif parameter.pattern and (error := _find_error(parameter.pattern)):
        found["pattern"] = (f"does not compile: {error}", "")
    return found


def _parse_bound(parameter: Parameter, bound: Any) -> Any:
    return None if bound is None else _PARSERS[parameter.type](bound)


def _describe_range(parameter: Parameter) -> str:
    if parameter.min is None or parameter.max is None:
        return parameter.description
    return f"it is from {parameter.min} to {parameter.max}"


def _find_error(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        return str(error)
    return ""
