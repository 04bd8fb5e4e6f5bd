"""Where user namespaces are refused: what the fallback promises, against the same attacks; it says what is weaker.

One run serves all. What it does not promise (files hidden without Landlock, a /tmp of its own, processes) is not tried.
"""

import json
import re
from collections.abc import Iterator

import checks_forging as forging
import checks_reaching as reaching
import checks_wrecking as wrecking
import pytest
from checks_stage import Attack, Stage, open_stage
from test_run_fallback import REFUSED

from retinue.client import OutcomeKind, Retinue

KILLED = (OutcomeKind.KILLED,)
REACHING = {
    "kill_parent", "kill_the_run", "kill_by_descriptor", "signal_everyone", "trace_anyone", "connect_anywhere",
    "attach_shared_memory", "leave_the_jail", "take_priority", "write_elsewhere", "patch_the_checker",
    "keep_descriptors_in_flight", "hand_descriptors_to_the_host",
}  # fmt: skip
WRECKING = {
    "allocate", "exit_quietly", "crash", "overflow_the_stack", "raise_system_exit", "recurse",
    "block_all_and_sleep", "burn_in_c", "close_and_spin", "half_a_result", "print_for_ever",
}  # fmt: skip
ATTACKS = [attack for attack in reaching.ATTACKS if attack.name in REACHING]
ATTACKS += [attack for attack in wrecking.ATTACKS if attack.name in WRECKING]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("weaker"), prefix=REFUSED) as stage:
        assert stage.run.node()["rung"] == "subreaper"
        yield stage


def test_the_names_above_are_names_of_attacks() -> None:
    assert {attack.name for attack in ATTACKS} == REACHING | WRECKING


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_an_attack_on_the_weaker_rung_is_a_zero_and_nothing_else(stage: Stage, attack: Attack) -> None:
    outcome = await stage.attack(attack)
    assert outcome.outcome in attack.ends, outcome
    assert not re.search("NOT L|NameError|ImportError|AttributeError", outcome.reason), outcome
    assert outcome.score == 0.0
    if outcome.outcome is OutcomeKind.SCORED:
        assert json.loads(outcome.reason) == []
    assert not list(stage.run.directory.rglob("planted*"))


async def test_no_process_can_be_started_there(stage: Stage) -> None:
    code = """
import os
refused = 0
for start in (os.fork, lambda: os.execv("/bin/true", ["true"]), lambda: os.posix_spawn("/bin/true", ["true"], {})):
    try:
        start()
    except OSError:
        refused += 1
answer = (0.0, str(refused))
"""
    async with Retinue.from_env(stage.env) as client:
        outcome = await client.check("evil", response=code)
        await stage.assert_unharmed(client)
    assert (outcome.score, outcome.reason) == (0.0, "3")


@pytest.mark.parametrize(
    "attack", [Attack(forging.forge_everywhere, KILLED), Attack(forging.claim_a_huge_frame, KILLED)]
)
async def test_a_forged_result_there_is_a_zero_too(stage: Stage, attack: Attack) -> None:
    outcome = await stage.attack(attack)
    assert (outcome.outcome, outcome.score) == (OutcomeKind.KILLED, 0.0)


def test_it_says_what_is_weaker(stage: Stage) -> None:
    log = "".join(path.read_text() for path in stage.run.attempt_dir.glob("logs/checks.0/*.log"))
    assert "no namespaces" in log
    assert "system call filter" in log
