"""Progress probes, longer budgets, inner ports and the run's token in a manifest: what is planned or refused."""

from pathlib import Path

import pytest

from retinue.allocation.described import parse_description
from retinue.manifest.files import read_manifest
from retinue.manifest.load import check_manifest
from retinue.plan.build import build_plan
from retinue.plan.records import Plan

HEAD = "retinue: 1\nrun: {name: x}\nservices:\n  a:\n    command: [x, '{port}']\n    "
ONE_OF = "write exactly one of http, tcp, exec"


def find(line: str) -> list[str]:
    return [finding.render("m") for finding in check_manifest(HEAD + line + "\n")]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (
            "probes: {readiness: {progress: vllm}}",
            "readiness.progress: only a liveness probe may ask for progress, not readiness; ask http: /health there",
        ),
        ("probes: {liveness: {progress: tgi}}", "liveness.progress: is vllm, sglang or llamacpp, not 'tgi'"),
        (
            "probes: {liveness: {progress: vllm, http: /}}",
            f"liveness.progress: has http and progress; {ONE_OF}, progress",
        ),
        (
            "probes: {liveness: {http: /, stall: 5s}}",
            "liveness.stall: 'stall' has a meaning only beside 'progress'; remove it",
        ),
        (
            "probes: {liveness: {http: /, budget_max: 5s}}",
            "liveness.budget_max: only a startup probe has a budget; remove it",
        ),
        (
            "probes: {startup: {http: /, budget: 10m, budget_max: 5m}}",
            "is shorter than the budget itself; it is how far the budget may go on",
        ),
        ("env: {KEY: 'run:tokn'}", "env.KEY: 'run:tokn' is nothing that the run has; write 'run:token'"),
    ],
)
def test_what_has_no_meaning_is_told_with_the_fix(line: str, what: str) -> None:
    [found] = find(line)
    assert found.endswith(what)


def plan(tmp_path: Path, line: str) -> Plan:
    (tmp_path / "m.yaml").write_text(HEAD + line + "\n")
    allocation = parse_description("n1", 0, 4)
    return build_plan(read_manifest(tmp_path / "m.yaml"), allocation, ("true",), "/", "/run", "/run/attempt-0")


def test_the_controllers_budget_is_the_longest_and_the_agent_knows_the_shorter(tmp_path: Path) -> None:
    [replica] = plan(tmp_path, "probes: {startup: {http: /, budget: 10m, budget_max: 1h}}").replicas
    assert replica.policy.startup_budget_s == 3600.0
    assert (replica.launch.probes[0].budget_s, replica.launch.probes[0].budget_max_s) == (600.0, 3600.0)


def test_the_runs_token_is_a_name_in_the_plan_and_never_a_value(tmp_path: Path) -> None:
    planned = plan(tmp_path, "env: {KEY: 'run:token', BASE: '{inner_port}'}")
    launch = planned.replicas[0].launch
    assert (launch.token_env, launch.env) == (("KEY",), {"BASE": "{inner_port}"})
    assert launch.wants_inner_port
    assert planned.services[0].wants_token
