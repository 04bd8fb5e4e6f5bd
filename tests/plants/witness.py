"""A pytest plugin: tells `plant.py` which retinue was imported, and how the first failure came about."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import retinue

REPORT = "PLANT_REPORT"
"""Environment name of the file the report goes to."""

_said: dict[str, Any] = {"package": retinue.__file__, "passed": 0, "skipped": 0, "failure": None}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count what ran, and what only looks as if it did."""
    _said["passed"] += int(report.when == "call" and report.passed)
    _said["skipped"] += int(report.skipped)


def pytest_exception_interact(call: pytest.CallInfo[object], report: pytest.TestReport | pytest.CollectReport) -> None:
    """Keep the first failure: an assertion of a test, or something that kept the test from judging."""
    if _said["failure"] is not None or call.excinfo is None:
        return
    error = call.excinfo.value
    lines = str(error).splitlines()
    _said["failure"] = {
        "test": report.nodeid,
        "error": f"{type(error).__name__}: {lines[0] if lines else ''}",
        # `pytest.raises` that saw nothing fails with pytest's own exception.
        "is_assertion": report.when == "call" and isinstance(error, AssertionError | pytest.fail.Exception),
    }


def pytest_unconfigure() -> None:
    """Write the report; a run that never got here has none."""
    Path(os.environ[REPORT]).write_text(json.dumps(_said))
