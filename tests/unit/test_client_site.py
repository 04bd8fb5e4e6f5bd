"""Where a client finds its services: the environment of a run, the endpoints file, or what it was told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retinue.client import Endpoint, Retinue, SyncRetinue
from retinue.client.endpoints import read_endpoints
from retinue.client.site import HOLD_OUTSIDE_S, HOLD_S, find_url, read_site
from retinue.errors import NotReadyError, TransientError, UsageError
from retinue.journal import endpoints as journal
from retinue.terms.record import to_json, to_plain

URL = "http://127.0.0.1:20000/"


def write_run(directory: Path, **services: tuple[str, int]) -> dict[str, str]:
    """Write an attempt directory; service -> (kind, ready). Returns the trainer's environment."""
    found = {name: journal.Endpoint(kind, URL + name, ready, 2) for name, (kind, ready) in services.items()}
    (directory / "endpoints.json").write_bytes(to_json(journal.Endpoints("0123456789ab", 3, found)))
    (directory / "token").write_text("the-token\n")
    return {
        "RETINUE_ENDPOINTS": str(directory / "endpoints.json"),
        "RETINUE_TOKEN_FILE": str(directory / "token"),
        "RETINUE_NODE": "n7",
    }


def test_outside_a_run_the_error_says_what_to_do() -> None:
    for kind in (Retinue, SyncRetinue):
        with pytest.raises(UsageError, match="retinue run MANIFEST"):
            kind.from_env({"HOME": "/root"})


def test_the_variable_of_the_service_comes_first(tmp_path: Path) -> None:
    env = write_run(tmp_path, checks=("checks", 1)) | {"RETINUE_CHECKS_URL": "http://127.0.0.1:1/checks"}
    assert find_url(read_site(env, "here"), "checks") == "http://127.0.0.1:1/checks"


def test_a_service_of_kind_checks_stands_in_under_any_name(tmp_path: Path) -> None:
    site = read_site(write_run(tmp_path, judge=("judge", 1), scorer=("checks", 1)), "here")
    assert find_url(site, "checks") == URL + "scorer"
    assert find_url(site, "judge") == URL + "judge"


def test_two_services_of_kind_checks_have_to_be_named(tmp_path: Path) -> None:
    site = read_site(write_run(tmp_path, easy=("checks", 1), hard=("checks", 1)), "here")
    with pytest.raises(UsageError, match="easy, hard"):
        find_url(site, "checks")
    assert find_url(site, "hard") == URL + "hard"


def test_an_unknown_service_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'code'.*judge, scorer"):
        find_url(read_site(write_run(tmp_path, judge=("judge", 1), scorer=("checks", 1)), "here"), "code")
    with pytest.raises(UsageError, match=r"'code'.*checks"):
        Retinue("http://127.0.0.1:1").check_many([], service="code")


def test_token_node_and_hold_come_from_the_run(tmp_path: Path) -> None:
    env = write_run(tmp_path, checks=("checks", 1))
    (tmp_path / "plan.json").write_text('{"name": "x", "hold_s": 12.5, "services": [1, 2]}')
    site = read_site(env, "here")
    assert (site.token, site.node, site.hold_s) == ("the-token", "n7", 12.5)


def test_without_plan_token_or_node_there_are_defaults(tmp_path: Path) -> None:
    env = {"RETINUE_ENDPOINTS": str(tmp_path / "endpoints.json"), "RETINUE_TOKEN_FILE": str(tmp_path / "gone")}
    site = read_site(env, "here")
    assert (site.token, site.node, site.hold_s) == ("", "here", HOLD_S)
    assert read_site({"RETINUE_CHECKS_URL": URL}, "here").hold_s == HOLD_OUTSIDE_S


def test_the_endpoints_are_those_the_journal_writes(tmp_path: Path) -> None:
    env = write_run(tmp_path, judge=("judge", 0), scorer=("checks", 1))
    written = journal.Endpoints("0123456789ab", 3, {"tcp": journal.Endpoint("command", None, 1, 1, ("10.0.0.1:99",))})
    assert Retinue.from_env(env).endpoints()["scorer"] == Endpoint("checks", URL + "scorer", 1, 2)
    (tmp_path / "endpoints.json").write_bytes(to_json(written))
    assert to_plain(read_endpoints(env["RETINUE_ENDPOINTS"])) == to_plain(written)


def test_endpoints_outside_a_run_or_without_their_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="outside a run"):
        Retinue(URL).endpoints()
    with pytest.raises(TransientError, match="cannot read endpoints"):
        SyncRetinue.from_env({"RETINUE_ENDPOINTS": str(tmp_path / "gone.json")}).endpoints()


async def test_the_gate_opens_when_what_was_named_is_ready(tmp_path: Path) -> None:
    r = Retinue.from_env(write_run(tmp_path, judge=("judge", 0), scorer=("checks", 1)))
    await r.gate(["scorer"], 20)
    with pytest.raises(NotReadyError, match=r"not ready after 0\.1 s: judge 0/2"):
        await r.gate((), 0.1)
    waiting = asyncio.create_task(r.gate("judge", 20))
    await asyncio.sleep(0)
    write_run(tmp_path, judge=("judge", 1), scorer=("checks", 1))
    await waiting


async def test_the_gate_of_a_run_that_is_over_or_of_an_unknown_service_does_not_wait(tmp_path: Path) -> None:
    r = Retinue.from_env(write_run(tmp_path, judge=("judge", 0)))
    with pytest.raises(UsageError, match="'juge'"):
        await r.gate(["juge"], 20)
    (tmp_path / "verdict.json").write_text("{}")
    with pytest.raises(NotReadyError, match="the run is over"):
        await r.gate((), 20)


async def test_the_gate_waits_for_a_file_that_is_not_written_yet(tmp_path: Path) -> None:
    r = Retinue.from_env({"RETINUE_ENDPOINTS": str(tmp_path / "endpoints.json")})
    with pytest.raises(NotReadyError, match="cannot read endpoints"):
        await r.gate((), 0.1)


@pytest.mark.parametrize("given", ["ftp://h", {}, {"checks": "nowhere"}])
def test_a_wrong_address_is_refused_where_it_is_given(given: Any) -> None:
    with pytest.raises(UsageError):
        Retinue(given)
