"""The command lines of the judges, whole: who changes a template sees what is executed."""

import json
from pathlib import Path

import pytest

from retinue.allocation.described import parse_description
from retinue.manifest.files import read_manifest
from retinue.plan.build import build_plan
from retinue.terms.launch import LaunchSpec
from retinue.terms.record import to_plain

GOLDEN = Path(__file__).parents[1] / "golden" / "judges.json"
SERVICES = {
    "judge-llamacpp": "with: {model: /models/j.gguf, threads: 3}",
    "judge-vllm": "with: {model: /models/j, tensor_parallel: 4, args: [--enforce-eager]}, replicas: 2",
    "judge-sglang": "with: {model: /models/j, tensor_parallel: 2}",
    "rehearsal": "with: {faults: [load=5s, '1:hang=10s']}",
}


def build_launch(template: str, tmp_path: Path) -> LaunchSpec:
    path = tmp_path / "m.yaml"
    path.write_text(f"retinue: 1\nrun: {{name: x}}\nservices:\n  j: {{template: {template}, {SERVICES[template]}}}\n")
    plan = build_plan(read_manifest(path), parse_description("n1", 8, 16), ("true",), "/", "/run", "/run/attempt-0")
    return plan.replicas[-1].launch


@pytest.mark.parametrize("template", SERVICES)
def test_a_judges_command_environment_and_probes_are_exactly_these(template: str, tmp_path: Path) -> None:
    launch = build_launch(template, tmp_path)
    found = {
        "argv": launch.argv,
        "env": launch.env,
        "token_env": launch.token_env,
        "gpus": launch.gpus,
        "probes": [to_plain(probe) for probe in launch.probes],
    }
    assert json.loads(json.dumps(found)) == json.loads(GOLDEN.read_text())[template]


@pytest.mark.parametrize("template", ["judge-llamacpp", "judge-vllm", "judge-sglang"])
def test_a_judges_key_is_the_runs_token_and_in_no_argv(template: str, tmp_path: Path) -> None:
    launch = build_launch(template, tmp_path)
    assert launch.token_env
    assert not any("token" in word.lower() for word in launch.argv)
    assert not set(launch.token_env) & set(launch.env)
    assert launch.env["HF_HUB_OFFLINE"] == "1"
