"""A rehearsed manifest keeps what is to be tried and loses what costs; faults and scripts are refused by name."""

from pathlib import Path

import pytest

from retinue.cli.rehearse_command import split_faults
from retinue.errors import UsageError
from retinue.manifest.files import read_manifest
from retinue.manifest.load import load_manifest
from retinue.manifest.rehearse import rehearse_manifest
from retinue.manifest.resolve import dump_manifest
from retinue.manifest.schema import Manifest
from retinue.rehearsal.faults import ALWAYS, Faults, parse_faults
from retinue.rehearsal.script import Line, Script, parse_script

TEXT = """\
retinue: 1
run: {name: big, hold: 5m}
nodes: {train: {count: 2}, env: {count: rest}}
trainer: {on: train}
services:
  judge:
    template: judge-vllm
    with: {model: /models/j, tensor_parallel: 4}
    replicas: 3
    place: {on: env, gpus: 4}
    restart: {limit: 2, on_exhausted: fail_run}
  prep: {command: [prepare], env: {KEY: "env:SECRET"}}
  files: {command: [serve, "{port}"], per_node: env, depends_on: {prep: completed}, probes: {liveness: {exec: [x]}}}
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "m.yaml").write_text(TEXT)
    return read_manifest(tmp_path / "m.yaml")


def test_a_rehearsal_keeps_counts_order_and_rules_and_loses_commands_gpus_and_secrets(manifest: Manifest) -> None:
    found = rehearse_manifest(manifest, {"judge": ["hang=10s"]}, (), is_flat=True)
    judge, prep, files = (found.services[name] for name in ("judge", "prep", "files"))
    assert (judge.replicas, judge.restart.limit, judge.restart.on_exhausted.value) == (3, 2, "fail_run")
    assert (judge.place.gpus, judge.place.on, judge.env) == (0, None, {})
    assert judge.command[-2:] == ("--fault", "hang=10s")
    assert judge.probes.liveness is not None
    assert judge.probes.liveness.progress == "vllm"
    assert prep.command[-1] == "--exit-after-load"
    assert (prep.env, prep.has_port, prep.success) == ({}, False, (0,))
    assert (files.per_node, files.depends_on["prep"].condition) == ("all", "completed")
    assert files.probes.liveness is not None
    assert files.probes.liveness.exec is None
    assert (found.nodes, found.trainer.on, found.run.hold_s) == ({}, None, 300.0)


def test_a_rehearsed_manifest_is_a_manifest(manifest: Manifest) -> None:
    found = rehearse_manifest(manifest, {}, ("files",), is_flat=False)
    again = load_manifest(dump_manifest(found), "rehearsal.yaml")
    assert again.services["files"].command == ("serve", "{port}")
    assert set(again.nodes) == {"train", "env"}


@pytest.mark.parametrize(("faults", "kept"), [({"jugde": ["die=1s"]}, ()), ({}, ("jugde",))])
def test_a_service_that_is_not_there_is_refused_by_name(
    manifest: Manifest, faults: dict[str, list[str]], kept: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match="'jugde'; there are judge, prep, files"):
        rehearse_manifest(manifest, faults, kept, is_flat=True)


def test_faults_are_for_every_launch_or_for_one() -> None:
    words = ["load=1.5s", "2:die=1m", "die-code=7", "error=all", "ignore-term", "memory=2MiB"]
    first, second = parse_faults(words, 1), parse_faults(words, 2)
    assert first == Faults(load=1.5, die_code=7, error=ALWAYS, ignore_term=True, memory=2 << 20)
    assert second.die == 60.0


@pytest.mark.parametrize("word", ["dies=1s", "die=1", "die", "x:die=1s", "error=some", "memory=1s", "ignore-term=1s"])
def test_a_fault_that_has_no_meaning_is_refused_by_its_own_words(word: str) -> None:
    with pytest.raises(ValueError, match=word.replace("x:", "")):
        parse_faults([word], 1)
    with pytest.raises(UsageError, match="--fault judge:"):
        split_faults([f"judge:{word}"])


def test_a_script_says_its_first_line_that_matches_as_often_as_it_may() -> None:
    rows = '{"match": "price", "reply": {"cost": 3}, "times": 1}\n\n{"turn": 1, "reply": "again"}\n{"reply": "else"}\n'
    script = Script(parse_script(rows))
    asked = [{"role": "user", "content": "what price?"}]
    assert [script.choose(asked, None).reply for _ in range(2)] == [{"cost": 3}, "else"]
    assert script.choose([{"role": "assistant", "content": "hi"}, *asked], None).reply == "again"
    assert Script([]).choose(asked, {"enum": ["a"]}) == Line(reply='"a"')


@pytest.mark.parametrize("row", ["{", '{"match": "("}', '{"replies": "x"}'])
def test_a_line_of_a_script_that_cannot_be_read_is_named(row: str) -> None:
    with pytest.raises(ValueError, match="line 2 of the script"):
        parse_script(f'{{"reply": "x"}}\n{row}\n')
