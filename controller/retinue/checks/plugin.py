"""What a verifier is: one function, and perhaps a second that prepares the gold.

    def check(response: str, gold, args: dict) -> float | tuple[float, str]
    check.prepare = lambda gold, args: gold        # optional; runs once per check, before the response is seen

Named `module:function` in the service's `with: {verifiers: {...}}`. Anything it
raises on a response is that response's fault (score 0); anything `prepare`
raises is the dataset's (`rejected`).
"""

from collections.abc import Callable
from typing import Any, Protocol

Score = float | tuple[float, str]


class Verifier(Protocol):
    """A check. `prepare`, `warm` and `__doc__` are optional attributes."""

    def __call__(self, response: str, gold: Any, args: dict[str, Any]) -> Score: ...


class Unverifiable(ValueError):
    """Raised by `prepare` (or while `check` reads gold or args): the dataset or the request is wrong."""


Prepare = Callable[[Any, dict[str, Any]], Any]
Warm = Callable[[], None]
"""`check.warm()`: exercise everything that is slow the first time; called once in the warm parent."""
