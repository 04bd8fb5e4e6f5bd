"""Every input that is known to hang a verifier, each in a process of its own with one second of CPU.

What shows here is that no verifier rescues itself with a timer: the kernel ends it, as the checks service will.
"""

import importlib.util
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from retinue.checks.verifiers import math, regex

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart"
ROWS = [json.loads(line) for line in (QUICKSTART / "data" / "hanging_answers.jsonl").read_text().splitlines()]
CPU_S = 1
MEMORY_BYTES = 3 << 30


def load_expression() -> Any:
    spec = importlib.util.spec_from_file_location("expression", QUICKSTART / "verifiers" / "expression.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def verifiers() -> dict[str, Any]:
    loaded = {"math": math, "regex": regex, "expression": load_expression()}
    for module in loaded.values():
        module.warm()
    return loaded


def run_alone(module: Any, row: dict[str, Any]) -> tuple[str, float]:
    """Fork, check, and say how it ended; the child's CPU limit stands for the service's deadline."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            gold = module.prepare(row["gold"], row["args"])
            os.write(writing, b"prepared ")
            os.write(writing, str(module.check(row["response"], gold, row["args"])[0]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        _, status = os.waitpid(pid, 0)
        written = os.read(reading, 100).decode()
    finally:
        os.close(reading)
    is_prepared, written = "prepared" in written, written.removeprefix("prepared ")
    if not is_prepared:
        return "rejected", 0.0
    if os.WIFSIGNALED(status):
        return ("timed_out" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "killed"), 0.0
    return ("scored", float(written)) if written else ("killed", 0.0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_an_input_that_hangs_is_ended_from_outside_and_never_scores(
    row: dict[str, Any], verifiers: dict[str, Any]
) -> None:
    outcome, score = run_alone(verifiers[row["verifier"]], row)
    assert outcome in row["expected"]
    assert score == row["score"]


@pytest.mark.parametrize("gold", ["100000000!", ["5", r"x = 10^{8}!"], "9^{9^{9^{9}}}"])
def test_a_gold_that_cannot_be_compared_is_the_datasets_fault_before_any_response(
    gold: Any, verifiers: dict[str, Any]
) -> None:
    row = {"response": r"\boxed{5}", "gold": gold, "args": {}}
    assert run_alone(verifiers["math"], row)[0] == "rejected"


def test_the_same_text_from_the_policy_is_the_policys_hang(verifiers: dict[str, Any]) -> None:
    row = {"response": r"\boxed{100000000!}", "gold": "5", "args": {}}
    assert run_alone(verifiers["math"], row) == ("timed_out", 0.0)


def test_most_of_the_inputs_do_hang() -> None:
    assert sum("scored" not in row["expected"] for row in ROWS) >= 12
    assert len({row["name"] for row in ROWS}) == len(ROWS)
