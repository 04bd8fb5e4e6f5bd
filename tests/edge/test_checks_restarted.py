"""A checks host that is killed: what it left open is closed, and the gap is an outage of its own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checks_scenes import FAKE_WARM, PLUGIN, build_settings, real_host, until

from retinue.checks import nursery
from retinue.checks.ledger_file import find_left_open
from retinue.checks.settings import Settings
from retinue.checks.standing import Standing
from retinue.terms.outage import Outage
from retinue.terms.record import to_json
from support.real_run import wait_for

STARTER = "import retinue.checks.main as m, sys; m.BUILTIN = {}; sys.exit(m.main(sys.argv[1:]))"


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    paths = {"ledger_path": str(tmp_path / "outages.jsonl"), "sign_path": str(tmp_path / "checks.0.alive")}
    return build_settings(tmp_path, **paths)


async def die(settings: Settings, **outages: float) -> float:
    """Let a host begin outages and be gone without a word; when it was last alive."""
    standing = Standing(settings)
    for cause, from_utc in outages.items():
        standing.ledger.begin(cause, from_utc, "why")
    standing._file.close()
    last_utc = time.time() - 7.0
    os.utime(settings.sign_path, (last_utc, last_utc))
    return Path(settings.sign_path).stat().st_mtime


async def test_what_a_killed_host_left_open_is_closed_when_the_next_is_ready_and_the_gap_is_an_outage(
    settings: Settings,
) -> None:
    last_utc = await die(settings, warm_parent_down=5.0, node_pressure=6.0)
    began_utc = time.time()
    async with real_host(settings, FAKE_WARM) as host:
        closed = await until(
            "all to be closed", lambda: [e for e in host.ledger.read() if e.to_utc] if all_closed(host) else []
        )
        assert {e.cause: e.from_utc for e in closed} == {
            "warm_parent_down": 5.0,
            "node_pressure": 6.0,
            "host_down": last_utc,
        }
        assert all(began_utc <= (e.to_utc or 0) <= time.time() for e in closed)
        assert {e.detail for e in closed} == {"why; host restarted", "the checks host was killed or crashed"}
    lines = read_lines(Path(settings.ledger_path))
    open_lines = {(line["cause"], line["from_utc"]) for line in lines if line["to_utc"] is None}
    assert open_lines == {(line["cause"], line["from_utc"]) for line in lines if line["to_utc"] is not None}


def all_closed(host: Any) -> bool:
    return len(host.ledger.read()) == 3 and all(entry.to_utc for entry in host.ledger.read())


async def test_a_host_killed_again_before_it_was_ready_leaves_one_gap_that_reaches_back_to_the_first(
    settings: Settings,
) -> None:
    first_utc = await die(settings)
    second_utc = await die(settings)
    async with real_host(settings, FAKE_WARM) as host:
        await until("both", lambda: len([e for e in host.ledger.read() if e.to_utc]) == 2)
        assert {e.from_utc for e in host.ledger.read()} == {first_utc, second_utc}


async def test_a_host_that_stopped_in_order_leaves_no_gap(settings: Settings) -> None:
    for _ in range(2):
        async with real_host(settings, FAKE_WARM) as host:
            await until("a sign of life", lambda: Path(settings.sign_path).exists())
            assert [e.cause for e in host.ledger.read() if e.cause == "host_down"] == []
        assert not Path(settings.sign_path).exists()


async def test_a_sign_of_life_is_given_while_it_lives_even_before_it_is_warm(settings: Settings) -> None:
    async with real_host(settings, (*FAKE_WARM, "--silent"), waits=False):
        os.utime(settings.sign_path, (1.0, 1.0))
        await until("the next sign", lambda: Path(settings.sign_path).stat().st_mtime > 1.0)


def test_only_the_own_replicas_open_lines_are_found_and_a_torn_line_is_none() -> None:
    def line(replica: str, from_utc: float, to_utc: float | None = None, service: str = "checks") -> bytes:
        return to_json(Outage(service, "n1", from_utc, to_utc, "node_pressure", "", replica))

    lines = [
        line("checks/0", 1.0),
        line("checks/0", 1.0, 2.0),
        line("checks/0", 3.0),
        line("checks/1", 4.0),
        line("other/0", 5.0, service="other"),
        b'{"service":"checks","node":',
        b"",
        line("checks/0", 99.0),
    ]
    assert [outage.from_utc for outage in find_left_open(lines, "checks", "checks/0", 50.0)] == [3.0]


async def test_a_stuck_warm_parent_is_down_since_it_got_stuck_not_since_it_was_found_out(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "STUCK_S", 1.0)
    monkeypatch.setattr(nursery, "LOOK_S", 0.05)
    async with real_host(settings, (*FAKE_WARM, "--barren"), waits=False) as host:
        await until("it to be warm", lambda: host.nursery.ever_warm)
        asked_utc = time.time()
        waiting = asyncio.create_task(host.nursery.take(lambda: float("inf")))
        (entry,) = await until("the entry", lambda: [e for e in host.ledger.read() if e.cause == "warm_parent_down"])
        waiting.cancel()
        assert "gave no child" in entry.detail
        assert abs(entry.from_utc - asked_utc) < time.time() - asked_utc - 0.5


class Service:
    """A real service of a run, with a plugin of its own and no built-in verifier."""

    def __init__(self, directory: Path) -> None:
        (directory / "mine.py").write_text(PLUGIN)
        env = os.environ | {
            "RETINUE_ENDPOINTS": str(directory / "endpoints.json"),
            "RETINUE_NODE_DIR": str(directory),
            "RETINUE_REPLICA": "checks/0",
            "RETINUE_NODE": "n7",
        }
        words = ["--port", "0", "--verifier", "mine=mine:check", "--plugin-path", str(directory)]
        self.popen = subprocess.Popen([sys.executable, "-P", "-c", STARTER, *words], env=env)

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(60)


@pytest.fixture
def services() -> Iterator[list[Service]]:
    running: list[Service] = []
    yield running
    for service in running:
        service.end()


def test_a_service_killed_in_a_run_writes_the_gap_down_at_its_next_start(
    tmp_path: Path, services: list[Service]
) -> None:
    services.append(Service(tmp_path))
    sign = tmp_path / "checks.0.alive"
    wait_for("a sign of life", sign.exists)
    services[0].end()
    last_utc = sign.stat().st_mtime
    services.append(Service(tmp_path))
    wait_for("both ends of the gap", lambda: len(read_lines(tmp_path / "outages.jsonl")) == 2)
    begun, over = read_lines(tmp_path / "outages.jsonl")
    assert (begun["cause"], begun["replica"], begun["from_utc"], begun["to_utc"]) == (
        "host_down",
        "checks/0",
        last_utc,
        None,
    )
    assert over["from_utc"] == last_utc < over["to_utc"] <= time.time()
