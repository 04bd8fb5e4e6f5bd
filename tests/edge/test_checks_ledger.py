"""The ledger file: both ends of every outage, and nothing outside a run."""

import json
from pathlib import Path

from retinue.checks.ledger import Ledger
from retinue.checks.ledger_file import LedgerFile, find_ledger_path


def test_an_outage_is_written_when_it_begins_and_when_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "outages.jsonl"
    file = LedgerFile(path)
    ledger = Ledger("checks", "n1", file.write)
    ledger.begin("warm_parent_down", 10.0, "killed")
    ledger.begin("warm_parent_down", 11.0)
    ledger.end("warm_parent_down", 12.5)
    ledger.end("node_pressure", 13.0)
    file.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["from_utc"], line["to_utc"]) for line in lines] == [(10.0, None), (10.0, 12.5)]
    assert {line["cause"] for line in lines} == {"warm_parent_down"}


def test_two_services_share_the_file_of_a_run(tmp_path: Path) -> None:
    files = [LedgerFile(tmp_path / "outages.jsonl") for _ in range(2)]
    for number, file in enumerate(files):
        Ledger("checks", f"n{number}", file.write).begin("node_pressure", float(number))
        file.close()
    lines = (tmp_path / "outages.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["node"] for line in lines) == ["n0", "n1"]


def test_outside_a_run_there_is_no_file() -> None:
    assert find_ledger_path({}) is None
    assert find_ledger_path({"RETINUE_ENDPOINTS": "/r/attempt-0/endpoints.json"}) == Path("/r/attempt-0/outages.jsonl")
    LedgerFile(None).close()
