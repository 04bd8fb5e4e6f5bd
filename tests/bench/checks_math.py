"""The one check that every system of the checks bench does, with our verifier and with the library alone."""

from typing import Any

TRIVIAL = r"\boxed{5}"
GOLD = "5"
HANG = r"\boxed{2^{4^{8^{16}}}}"
HANG_GOLD = "7"


def load() -> Any:
    """Import and exercise what a check needs, as a warm parent does; returns the verifier."""
    from retinue.checks.plugins import load_verifier, warm_verifier

    target = "retinue.checks.verifiers.math:check"
    verifier = load_verifier("math", target)
    warm_verifier("math", target, verifier)
    return verifier


def check_ours(response: str, gold: str) -> float:
    """Check with our verifier, which never times itself."""
    from retinue.checks.verifiers.math import check

    score = check(response, gold, {})
    return float(score[0] if isinstance(score, tuple) else score)


def check_library(response: str, gold: str, limit_s: float) -> float:
    """Check with math-verify as its README says: library timers (`signal.alarm`) on, main thread only."""
    from math_verify import parse, verify

    seconds = max(1, int(limit_s))
    golds = parse(gold, parsing_timeout=seconds)
    return float(verify(golds, parse(response, parsing_timeout=seconds), timeout_seconds=seconds))
