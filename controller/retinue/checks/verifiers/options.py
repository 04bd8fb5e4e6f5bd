"""Reads a verifier's arguments into a record, and quotes what others wrote.

A wrong argument is the request's fault (`Unverifiable`, so `rejected`) and is
found before the response is seen. Never looks at a response.
"""

from typing import Any, TypeVar

from retinue.checks.plugin import Unverifiable
from retinue.terms.record import DecodeError, Record, from_json, to_json

Options = TypeVar("Options", bound=Record)

QUOTED_MAX = 80


def read_options(args: dict[str, Any], kind: type[Options]) -> Options:
    """Read `args` into the verifier's record of options.

    Errors: Unverifiable names the argument that is unknown or of the wrong type.
    """
    try:
        return from_json(to_json(args), kind)
    except (DecodeError, TypeError, ValueError) as error:
        known = ", ".join(kind.__struct_fields__)
        raise Unverifiable(f"args: {error}; known arguments: {known}") from None


def quote(text: object) -> str:
    """Quote someone else's text in a reason, as `clean` makes it."""
    return f"'{clean(text)}'"


def clean(text: object) -> str:
    """Make of someone else's text something short, on one line, and with nothing in it that cannot be sent.

    Lone surrogates and control characters are escaped; a policy may print any of them.
    """
    shown = str(text)
    if len(shown) > QUOTED_MAX:
        shown = f"{shown[: QUOTED_MAX // 2]}…{shown[-QUOTED_MAX // 2 :]}"
    return "".join(_escape(char) for char in shown)


def _escape(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
