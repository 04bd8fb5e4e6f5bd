"""A verifier for the demo that is unsafe on purpose: it evaluates the policy's text with sympy's `parse_expr`.

Teams do have such checks. `parse_expr` runs Python, so a policy can do in this process whatever the process can: it
can hand itself the score, but it reaches nothing else. Use `math` for real rewards.
"""

from typing import Any

from sympy import Expr, simplify
from sympy.parsing.sympy_parser import parse_expr


def check(response: str, gold: Expr, args: dict[str, Any]) -> tuple[float, str]:
    """Compare the value of an expression in sympy's own syntax with the gold."""
    is_same = simplify(parse_expr(response) - gold) == 0
    return float(is_same), "equal" if is_same else "not equal"


def prepare(gold: str, args: dict[str, Any]) -> Expr:
    """Read the gold; whatever this raises is the dataset's fault, and the check is `rejected`."""
    return parse_expr(gold)


def warm() -> None:
    """Fill sympy's caches once, before any child is forked."""
    check("x**2 - (x - 1)*(x + 1)", prepare("1", {}), {})


check.prepare = prepare  # type: ignore[attr-defined]
check.warm = warm  # type: ignore[attr-defined]
