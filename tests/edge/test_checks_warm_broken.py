"""A verifier that cannot be warmed: the service must not become ready, and says which one and why."""

from pathlib import Path

import pytest
from warm_rig import Warm, build_env

from retinue.checks.records import Broken, WarmConfig

COLD = """
def check(response, gold, args):
    return 1
def warm():
    raise ValueError("cold")
check.warm = warm
"""
THREADED = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
check = max
"""
LITTERING = """
def check(response, gold, args): ...
check.warm = lambda: open("/usr/x", "w")
"""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module", "no_such_module"),
        (COLD, "cold"),
        (THREADED, "thread"),
        ("raise SystemExit(0)", "SystemExit"),
        (LITTERING, "Read-only"),
    ],
)
def test_a_verifier_that_cannot_be_warmed_breaks_the_service_by_name(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "unfit.py").write_text(source)
    with Warm(WarmConfig(verifiers={"mine": "unfit:check"}, path=[str(tmp_path)]), env=build_env()) as warm:
        message = warm.hear()
        assert isinstance(message, Broken)
        assert message.verifier == "mine"
        assert words in message.cause
        assert warm.process.wait(30) == 3


def test_a_search_path_that_is_not_there_breaks_the_service_in_words(tmp_path: Path) -> None:
    with Warm(WarmConfig(verifiers={}, path=[str(tmp_path / "gone")]), env=build_env()) as warm:
        message = warm.hear()
        assert isinstance(message, Broken)
        assert "gone" in message.cause
        assert warm.process.wait(30) == 3
