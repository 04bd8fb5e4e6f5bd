"""Every attack on a real run ends as its own rollout's zero, and nothing else changes.

One run serves all. After each attack the run's processes are the same ones, honest neighbours that ran beside it
have their scores, and the next check is right within two seconds.
"""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checks_forging as forging
import checks_reaching as reaching
import checks_wrecking as wrecking
import pytest
from checks_stage import Attack, Stage, build_response, list_children, list_tree, open_stage, wait_until

from retinue.client import Check, Outcome, OutcomeKind, Retinue

SCORED, KILLED = (OutcomeKind.SCORED,), (OutcomeKind.KILLED,)
SYSTEM_SOCKETS = ["/run/systemd/notify", "/dev/log", "/run/dbus/system_bus_socket"]
SPARES = 4
"""Two workers and what is kept beyond."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("attacked")) as stage:
        assert stage.run.node()["rung"] != "subreaper", "cannot show it here: no user namespaces"
        yield stage


def assert_zero(outcome: Outcome, attack: Attack) -> None:
    assert not re.search("NOT L|NameError|ImportError|AttributeError", outcome.reason), outcome
    assert re.search(attack.says, outcome.reason), outcome
    assert outcome.outcome in attack.ends, outcome
    assert outcome.score == 0.0
    if outcome.outcome is OutcomeKind.SCORED:
        assert json.loads(outcome.reason) == [], outcome.reason


def count_check_processes(stage: Stage) -> int:
    """All below the half of the warm parent that works."""
    inner = list_children(stage.pids["warm"])
    return len(list_tree(inner[0])) if inner else 0


def find_attacks(module: Any) -> list[Any]:
    return [pytest.param(attack, id=attack.name) for attack in module.ATTACKS]


@pytest.fixture(scope="module")
def visible_sockets(stage: Stage) -> Iterator[list[str]]:
    """Somebody listens where a check can see it: in the plugin directory."""
    opened = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        listener = socket.socket(socket.AF_UNIX, kind)
        listener.bind(str(stage.run.directory / "plugins" / f"{kind.name}.sock"))
        if kind is not socket.SOCK_DGRAM:
            listener.listen()
        listener.setblocking(False)
        opened.append(listener)
    yield [listener.getsockname() for listener in opened]
    for listener in opened:
        with listener, pytest.raises(BlockingIOError):
            listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()


@pytest.mark.parametrize("attack", find_attacks(reaching))
async def test_what_reaches_out_gets_hold_of_nothing(stage: Stage, visible_sockets: list[str], attack: Attack) -> None:
    told = stage.targets()
    shifted = ["".join(chr(ord(letter) + 1) for letter in word) for word in told["words"]]
    before = len(list(Path(f"/proc/{stage.pids['checks']}/fd").iterdir()))
    outcome = await stage.attack(
        attack, shifted=shifted, words=[], sockets=told["sockets"] + visible_sockets + SYSTEM_SOCKETS
    )
    assert_zero(outcome, attack)
    planted = [path for place in told["places"] for path in Path(place).rglob("planted*")]
    assert planted == []
    wait_until(
        "the host to have no more descriptors than before",
        lambda: len(list(Path(f"/proc/{stage.pids['checks']}/fd").iterdir())) <= before + 2 * SPARES,
    )


@pytest.mark.parametrize("attack", find_attacks(wrecking))
async def test_what_wrecks_its_check_wrecks_nothing_else(stage: Stage, attack: Attack) -> None:
    if os.geteuid() == 0 and re.search(r"os\.fork|start_new_thread", build_response(attack.function)):
        pytest.skip("cannot here: as root no check may start a process")
    outcome = await stage.attack(attack)
    assert_zero(outcome, attack)
    wait_until("every process of the attack to be gone", lambda: count_check_processes(stage) <= SPARES)


@pytest.mark.skipif(os.geteuid() == 0, reason="cannot here: as root no check may start a process")
async def test_the_time_of_children_that_are_gone_is_their_checks_own(stage: Stage) -> None:
    attack = Attack(wrecking.burn_in_children, (OutcomeKind.TIMED_OUT,), 1.0)
    outcome = await stage.attack(attack)
    assert_zero(outcome, attack)
    assert outcome.cpu_s > 0.2


async def test_what_one_check_leaves_behind_the_next_does_not_find(stage: Stage) -> None:
    for _ in range(3):
        assert_zero(await stage.attack(Attack(reaching.leave_traces)), Attack(reaching.leave_traces))
        assert_zero(await stage.attack(Attack(reaching.find_traces)), Attack(reaching.find_traces))


# --- results --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "more"),
    [
        (Attack(forging.forge_everywhere, KILLED, says="without the seal"), {}),
        (Attack(forging.print_a_result, SCORED), {}),
        (Attack(forging.claim_a_huge_frame, KILLED, says="protocol"), {}),
        (Attack(forging.send_rubbish, KILLED, says="protocol"), {"body": "[" * 60_000}),
        (
            Attack(forging.send_rubbish, KILLED, says="protocol"),
            {"body": '{"nonce":"","score":1,"score":1,"reason":"\ud83d"}'},
        ),
        *(
            (Attack(forging.send_raw_score, KILLED, says="unreadable answer"), {"score": score})
            for score in ("NaN", "Infinity", "-Infinity", "1e999", '"1"', "null", "true", "[1]", "9" * 400)
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Attack) else next(iter(value.values()), "")[:12],
)
async def test_a_forged_result_is_a_zero(stage: Stage, attack: Attack, more: dict[str, str]) -> None:
    assert_zero(await stage.attack(attack, **more), attack)


@pytest.mark.parametrize(
    "value", ["nan", "inf", "1e999", "text", "none", "list", "liar", "three", "huge_int", "complex"]
)
async def test_a_score_that_is_no_finite_number_is_a_zero(stage: Stage, value: str) -> None:
    outcome = await check_value(stage, value)
    assert (outcome.outcome, outcome.score) == (OutcomeKind.KILLED, 0.0)


async def check_value(stage: Stage, value: str) -> Outcome:
    response = build_response(forging.return_value).rpartition("answer = ")[0] + "answer = return_value(gold)\n"
    async with Retinue.from_env(stage.env) as client:
        outcome = await client.check("evil", response=response, gold={"value": value})
        await stage.assert_unharmed(client)
    return outcome


@pytest.mark.parametrize("value", ["long", "evil_text"])
async def test_a_reason_of_control_characters_without_end_is_cut(stage: Stage, value: str) -> None:
    outcome = await check_value(stage, value)
    assert (outcome.outcome, outcome.score) == (OutcomeKind.SCORED, 0.0)
    assert len(json.dumps(outcome.reason)) <= 64 * 1024


async def test_of_two_results_with_the_true_seal_only_the_first_is_one(stage: Stage) -> None:
    """This attacker runs inside its own verifier, so its own score is its to give: 0.25 here."""
    outcome = await stage.attack(Attack(forging.send_two))
    assert (outcome.outcome, outcome.score) == (OutcomeKind.SCORED, 0.25)


async def test_a_policy_that_controls_its_checker_gives_itself_a_score_and_no_other(stage: Stage) -> None:
    rows = [Check("evil", "answer = 1.0"), Check("evil", "pass"), Check("exact", "a", "b"), Check("math", "2", "3")]
    async with Retinue.from_env(stage.env) as client:
        scores = {index: outcome.score async for index, outcome in client.check_many(rows)}
        await stage.assert_unharmed(client)
    assert scores == {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}


async def test_a_verifier_of_ours_is_no_way_in(stage: Stage) -> None:
    """What `parse_expr` would run as Python, and gold that only the dataset may write."""
    marker = stage.run.directory / "plugins" / "planted"
    code = f"__import__('os').system('touch {marker}')"
    payloads = [code, rf"\boxed{{{code}}}", f"answer: {code}", "(lambda: (yield))()", "exec('1/0')"]
    rows = [Check("math", text, "7", timeout_s=1.0) for text in payloads]
    rows += [Check("regex", "a" * 40 + "!", "(a+)+$", timeout_s=0.5), Check("numeric", "9" * 10**6, "1")]
    async with Retinue.from_env(stage.env) as client:
        outcomes = [outcome async for _, outcome in client.check_many(rows)]
        await stage.assert_unharmed(client)
    assert [outcome.score for outcome in outcomes] == [0.0] * len(rows)
    assert not marker.exists()


async def test_after_all_of_it_the_run_ends_as_clean_as_any(stage: Stage) -> None:
    """Last: it ends the run that all of the above attacked."""
    assert stage.metric("warm_launches_total") == 1
    assert stage.metric("running") == 0
    replicas = [stage.run.replica(key) for key in ("checks/0", "server/0")]
    assert [replica["incarnation"] for replica in replicas] == [1, 1]
    stage.run.signal(signal.SIGTERM)
    assert stage.run.wait_end() == 143
    assert stage.run.verdict()["clean"] == "true"
    stage.run.assert_nothing_left()
