"""JSON as callers send it: lone surrogates, which JSON can spell and UTF-8 cannot, become U+FFFD.

So a service works with what any reader of UTF-8 would have seen.
"""

import json
import re
from typing import TypeVar

from retinue.terms.record import DecodeError, Record, from_json

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Body = TypeVar("Body", bound=Record)


def read_lenient(body: bytes, kind: type[Body]) -> Body:
    """Read JSON, lone surrogates replaced.

    Errors: DecodeError or ValueError says where; RecursionError when it is nested too deeply.
    """
    try:
        return from_json(body, kind)
    except DecodeError:
        if _SURROGATE.search(body) is None:
            raise
    return from_json(_replace_surrogates(body), kind)


def _replace_surrogates(body: bytes) -> bytes:
    # The standard library reads a lone surrogate; its own text form keeps pairs together.
    text = json.dumps(json.loads(body), ensure_ascii=False)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
