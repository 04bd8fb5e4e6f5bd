"""Whose fault a verifier's own mistake is: the request's when no response is needed to show it, else the response's."""

from pathlib import Path

import pytest
from checks_scenes import ask, build_settings, judge, real_host

from retinue.checks.host import Host
from retinue.checks.plugins import BUILTIN
from retinue.checks.records import Limits
from retinue.checks.settings import Settings
from retinue.terms.outcome import Outcome, OutcomeKind

SCORED, TIMED_OUT, KILLED = OutcomeKind.SCORED, OutcomeKind.TIMED_OUT, OutcomeKind.KILLED
REJECTED = OutcomeKind.REJECTED
LIMITS = Limits(wall_s=2.0, cpu_s=2.0, memory_bytes=512 * 2**20)
NONE_IF_ASKED = "    if response == 'none': return None\n"
IMPORT_IF_ASKED = "    if response == 'import': import no_such_module\n"


def build(tmp_path: Path, body: str) -> Settings:
    (tmp_path / "odd.py").write_text(f"seen = []\ndef check(response, gold, args):\n{body}")
    return build_settings(tmp_path, verifiers={"odd": "odd:check"}, limits=LIMITS)


async def ask_odd(host: Host, *responses: str) -> list[Outcome]:
    return [(await judge(host, ask(response, verifier="odd")))[0] for response in responses]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("    pass\n", "the verifier returned a NoneType, not a number"),
        ("    return '1.0'\n", "the verifier returned a str, not a number"),
        ("    return 1.0, 'a', 'b'\n", "the verifier returned 3 values, not a score and a reason"),
        ("    import no_such_module\n", "No module named 'no_such_module'"),
        ("    from json import no_such_name\n", "cannot import name 'no_such_name'"),
    ],
)
async def test_a_verifier_that_can_score_nothing_is_the_requests_fault_whatever_the_response(
    tmp_path: Path, body: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with real_host(build(tmp_path, body)) as host:
        outcomes = await ask_odd(host, "right", "", "none", "x" * 1000)
        assert {(o.outcome, o.score) for o in outcomes} == {(REJECTED, None)}
        assert all("fails on an empty response" in o.reason and words in o.reason for o in outcomes)
        assert host.running_count == 0
    assert capsys.readouterr().err.count("warning: verifier 'odd' is broken") == 1


@pytest.mark.parametrize("response", ["none", "import"])
async def test_a_response_that_leads_a_verifier_into_its_own_mistake_scores_zero_and_is_never_left_out(
    tmp_path: Path, response: str, capsys: pytest.CaptureFixture[str]
) -> None:
    body = NONE_IF_ASKED + IMPORT_IF_ASKED + "    return 1.0\n"
    async with real_host(build(tmp_path, body)) as host:
        # First of all, too: nothing that was rehearsed before decides.
        hostile, honest, again = await ask_odd(host, response, "right", response)
    assert [(o.outcome, o.score) for o in (hostile, honest, again)] == [(KILLED, 0.0), (SCORED, 1.0), (KILLED, 0.0)]
    assert capsys.readouterr().err.count("warning: verifier 'odd' is broken") == 1


@pytest.mark.parametrize("body", ["    return float(response)\n", "    return len(gold) / len(response)\n"])
async def test_a_verifier_that_only_stumbles_over_an_empty_response_is_used(tmp_path: Path, body: str) -> None:
    async with real_host(build(tmp_path, body)) as host:
        outcomes = await ask_odd(host, "5")
    assert [(o.outcome, o.score) for o in outcomes] == [(SCORED, 5.0)]


async def test_a_verifier_that_hangs_over_an_empty_response_is_used(tmp_path: Path) -> None:
    body = "    while not response: pass\n    return 1.0\n"
    async with real_host(build(tmp_path, body)) as host:
        outcomes = await ask_odd(host, "right", "right")
    assert {(o.outcome, o.score) for o in outcomes} == {(SCORED, 1.0)}


async def test_a_rehearsal_leaves_nothing_to_the_check_that_follows_and_is_held_once(tmp_path: Path) -> None:
    body = "    seen.append(response)\n    return float(len(seen))\n"
    async with real_host(build(tmp_path, body)) as host:
        taken: list[str] = []
        take = host.nursery.take

        async def note(*words: object) -> object:
            taken.append("child")
            return await take(*words)  # type: ignore[arg-type]

        host.nursery.take = note  # type: ignore[method-assign,assignment]
        outcomes = await ask_odd(host, "a", "b", "c")
        assert {(o.outcome, o.score) for o in outcomes} == {(SCORED, 1.0)}
        assert len(taken) == 4


async def test_a_gold_that_hangs_whoever_compares_it_has_no_score_and_the_same_text_from_the_policy_has_zero(
    tmp_path: Path,
) -> None:
    settings = build_settings(tmp_path, verifiers={"math": BUILTIN["math"]}, limits=LIMITS)
    async with real_host(settings) as host:
        bad_gold, hung, right = await judge(
            host,
            ask(r"\boxed{5}", gold="100000000!", verifier="math"),
            ask(r"\boxed{100000000!}", gold="5", verifier="math"),
            ask(r"\boxed{120}", gold="5!", verifier="math"),
        )
    assert (bad_gold.outcome, bad_gold.score) == (REJECTED, None)
    assert "preparing gold and args" in bad_gold.reason
    assert (hung.outcome, hung.score) == (TIMED_OUT, 0.0)
    assert (right.outcome, right.score) == (SCORED, 1.0)
