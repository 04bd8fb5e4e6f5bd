"""A service of a real run tries the outside: denied, counted, in status, file and verdict; the run goes on."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_scenes import build_server

from support.command import retinue
from support.real_run import RealRun, real_run

TRIES = """
import json, urllib.request
def answer(path):
    try:
        if path == "/tcp":
            socket.create_connection(("203.0.113.7", 443), timeout=1).close()
        elif path == "/udp":
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
        elif path == "/peer":
            with urllib.request.urlopen(os.environ["RETINUE_FREE_URL"] + "/health", timeout=20) as said:
                return said.status, said.read()
    except OSError as error:
        return 200, json.dumps({"errno": error.errno}).encode()
    return 200, b"{}"
"""
EACCES = 13


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRun]:
    directory = tmp_path_factory.mktemp("egress")
    services = {
        "caller": build_server(directory, "caller", TRIES),
        "free": build_server(directory, "free", TRIES, egress="off"),
    }
    with real_run(directory, services) as run:
        run.wait_phase("running")
        yield run


def ask(run: RealRun, service: str, path: str) -> str:
    with urllib.request.urlopen(run.url(service) + path, timeout=30) as said:
        return str(said.read().decode())


def skip_without_guard(run: RealRun) -> None:
    for node, reason in run.status()["egress"]["off"].items():
        text = retinue("status", str(run.run_dir), cwd=run.directory).stdout
        assert f"NOT GUARDED on {node}" in text, "a guard that is off is never kept quiet about"
        pytest.skip(f"no guard here: {reason}")


def test_a_denied_call_is_in_status_file_and_events(run: RealRun) -> None:
    skip_without_guard(run)
    for _ in range(3):
        assert json.loads(ask(run, "caller", "/tcp")) == {"errno": EACCES}
    assert json.loads(ask(run, "caller", "/udp")) == {"errno": EACCES}
    run.wait("four denied calls in the status", lambda: run.status()["egress"]["denied"] == 4)
    assert run.status()["egress"]["top"][0] == "caller/0 to 203.0.113.7:443 (3)"
    lines = [json.loads(line) for line in (run.attempt_dir / "egress.jsonl").read_text().splitlines()]
    first = lines[0]
    assert (first["replica"], first["what"], first["address"], first["port"]) == ("caller/0", "tcp", "203.0.113.7", 443)
    assert first["program"].startswith("python")
    assert {"EgressDenied"} <= {event["event"] for event in run.events()}
    text = retinue("status", str(run.run_dir), cwd=run.directory).stdout
    assert "egress: 4 calls denied: caller/0 to 203.0.113.7:443 (3)" in " ".join(text.split())


def test_services_reach_each_other_and_one_that_is_not_guarded_has_its_sockets(run: RealRun) -> None:
    skip_without_guard(run)
    assert ask(run, "caller", "/peer") == "{}"
    assert ask(run, "free", "/udp") == "{}"


def test_the_plan_says_who_is_guarded(run: RealRun) -> None:
    text = retinue("plan", str(run.manifest), cwd=run.directory).stdout
    assert "caller: the allocation only; udp none" in text
    assert "free: off" in text


def test_the_verdict_says_what_was_denied_and_who_was_not_guarded(tmp_path: Path) -> None:
    services = {"caller": build_server(tmp_path, "caller", TRIES), "free": build_server(tmp_path, "free", egress="off")}
    with real_run(tmp_path, services) as run:
        run.wait_phase("running")
        skip_without_guard(run)
        assert json.loads(ask(run, "caller", "/tcp")) == {"errno": EACCES}
        run.wait("a denied call in the status", lambda: run.status()["egress"]["denied"] == 1)
        run.signal(15)
        run.wait_end()
        egress = run.verdict()["egress"]
        assert (egress["denied"], egress["services"]) == (1, {"caller": "on", "free": "off"})
        text = retinue("status", str(run.run_dir), cwd=run.directory).stdout
        assert "1 call denied: caller/0 to 203.0.113.7:443 (1); off for free" in " ".join(text.split())
        run.assert_nothing_left()
