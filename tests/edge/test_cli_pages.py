"""What the commands say before anything runs: every finding at once, the plan, the schema, and help that teaches."""

import json
import re
from pathlib import Path

import pytest

from support.command import MANIFEST, retinue

COMMANDS = (
    "run",
    "up",
    "submit",
    "down",
    "check",
    "doctor",
    "plan",
    "status",
    "top",
    "why",
    "logs",
    "events",
    "restart",
    "gate",
    "models",
    "index",
    "rehearse",
    "sweep",
    "schema",
)
MANY = """\
retinue: 1
run: {name: x, drian: 5s}
services:
  a:
    comand: [x]
    replicas: many
  b:
    command: [x]
    depends_on: {c: ready}
    stop: {grace: 10}
    stop: {grace: 10s}
"""
SPREAD = """\
retinue: 1
run: {name: x}
services:
  judge: {command: [x, "{port}"], replicas: 4, place: {gpus: 4}}
  checks: {command: [x], per_node: all}
"""


def test_check_reports_every_finding_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANY)
    done = retinue("check", "run.yaml", cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.removeprefix("retinue: ").splitlines()
    assert all(re.match(r"run\.yaml:\d+:\d+: \S+: .+", line) for line in lines), lines
    places = {int(line.split(":")[1]) for line in lines}
    assert places >= {2, 5, 6, 9, 10, 11}
    assert "drain" in done.stderr
    assert "command" in done.stderr


def test_check_of_a_good_manifest_counts_its_services(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    done = retinue("check", "run.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run.yaml: ok, 1 service\n", "")


def test_check_and_plan_warn_of_a_service_that_gets_no_url(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST.replace('"600"]', '"600", --port, "8000"]'))
    checked = retinue("check", "run.yaml", cwd=tmp_path)
    assert (checked.returncode, checked.stdout) == (0, "run.yaml: ok, 1 service\n")
    planned = retinue("plan", "run.yaml", cwd=tmp_path)
    for said in (checked.stderr, planned.stdout):
        assert "warning: server listens on the fixed port 8000" in said


def test_plan_of_described_nodes_places_everything_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SPREAD)
    described = ("--nodes", "n[01-02]", "--gpus", "8", "--cpus", "64")
    shown = retinue("plan", "run.yaml", *described, cwd=tmp_path)
    assert shown.returncode == 0
    assert "judge/3" in shown.stdout
    assert "n02" in shown.stdout
    plan = json.loads(retinue("plan", "run.yaml", *described, "--json", cwd=tmp_path).stdout)
    nodes = {place["id"]: place["node"] for place in plan["replicas"]}
    assert sorted(nodes) == ["checks/0", "checks/1", "judge/0", "judge/1", "judge/2", "judge/3"]
    assert sorted(node for name, node in nodes.items() if name.startswith("judge")) == ["n01", "n01", "n02", "n02"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_plan_that_does_not_fit_is_4_and_says_what_was_free(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(SPREAD)
    done = retinue("plan", "run.yaml", "--nodes", "n01", "--gpus", "8", cwd=tmp_path)
    assert done.returncode == 4
    assert "judge/2" in done.stderr
    assert "free" in done.stderr


@pytest.mark.parametrize(
    "words", [("--nodes", "n[01"), ("--nodes", "n1", "--memory", "5"), ("--nodes", "n1", "--cpus", "0")]
)
def test_a_description_that_cannot_be_read_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "run.yaml").write_text(MANIFEST)
    done = retinue("plan", "run.yaml", *words, cwd=tmp_path)
    assert done.returncode in (2, 3)
    assert words[-1] in done.stderr


def test_the_schema_describes_every_key_and_refers_only_to_itself(tmp_path: Path) -> None:
    done = retinue("schema", cwd=tmp_path)
    schema = json.loads(done.stdout)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert schema["type"] == "object"
    assert set(schema["properties"]) >= {"retinue", "run", "nodes", "trainer", "services"}
    for reference in re.findall(r'"\$ref": "([^"]+)"', done.stdout):
        found = schema
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        assert found


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_how_it_is_typed(tmp_path: Path, command: str) -> None:
    done = retinue(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: retinue {command}")
    assert re.search(rf"^  +retinue {command}\b", done.stdout, re.MULTILINE), done.stdout


def test_help_lists_exactly_the_commands_there_are_and_the_exit_codes(tmp_path: Path) -> None:
    done = retinue("--help", cwd=tmp_path)
    listed = re.findall(r"^  ([a-z]+) {2,}\S", done.stdout.partition("Commands:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert "126/127" in done.stdout
