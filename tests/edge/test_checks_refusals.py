"""What a checks service refuses before it runs anything, and what it writes when it is stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.checks.jail.view import KEPT_ON_TOP, build_view
from retinue.checks.ledger import Ledger
from retinue.checks.ledger_file import LedgerFile
from retinue.checks.records import CheckRequest
from retinue.checks.verifiers import regex
from retinue.terms.record import DecodeError, from_json


def start(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", "-m", "retinue.checks", "--port", "0", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--verifier", "math=mine:check"), "--verifier names math twice"),
        (("--verifier", "a=x:check", "--verifier", "a=y:check"), "--verifier names a twice"),
        (("--plugin-path", "/no/such/directory"), "--plugin-path '/no/such/directory' is not a directory"),
        (("--workers", "0"), "--workers is 0"),
    ],
)
def test_a_command_line_that_cannot_work_ends_at_once_with_2(words: tuple[str, ...], said: str) -> None:
    ended = start(*words)
    assert ended.returncode == 2
    assert said in ended.stderr


def test_a_mistyped_key_of_a_request_is_no_silent_default() -> None:
    body = json.dumps({"verifier": "math", "response": "1", "gold": "1", "arg": {"tolerance": 0.1}})
    with pytest.raises(DecodeError, match="arg"):
        from_json(body, CheckRequest)


@pytest.mark.parametrize("gold", ["", ["", "a"]])
def test_an_empty_pattern_that_every_response_would_match_is_refused(gold: object) -> None:
    with pytest.raises(ValueError, match="empty pattern"):
        regex.prepare(gold, {})


def test_whatever_stands_on_top_of_the_file_system_and_is_not_the_system_is_hidden() -> None:
    hidden = build_view((), {}).hidden
    others = [
        entry.path for entry in os.scandir("/") if entry.is_dir(follow_symlinks=False) and entry.name not in KEPT_ON_TOP
    ]
    assert "/home" in others
    assert set(others) <= set(hidden)
    assert not {"/usr", "/etc"} & set(hidden)


def test_a_service_that_is_stopped_leaves_no_outage_open(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "outages.jsonl")
    ledger = Ledger("checks", "n1", file.write)
    ledger.begin("node_pressure", 1.0)
    ledger.end_all(2.0)
    file.close()
    lines = [json.loads(line) for line in (tmp_path / "outages.jsonl").read_text().splitlines()]
    assert [line["to_utc"] for line in lines] == [None, 2.0]
