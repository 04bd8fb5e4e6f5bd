"""A service that is pointed outside, and a trainer that asks for a guard, are findings with the line and the fix."""

from pathlib import Path

import pytest

from retinue.errors import ManifestError
from retinue.manifest.files import read_manifest

HEAD = "retinue: 1\nrun: {name: x}\n"


def find(tmp_path: Path, service: str, rest: str = "") -> list[str]:
    path = tmp_path / "m.yaml"
    path.write_text(f"{HEAD}services:\n  a:\n    {service}\n{rest}")
    try:
        read_manifest(path)
    except ManifestError as error:
        return [f"{finding.line}: {finding.path}: {finding.what}; {finding.hint}" for finding in error.findings]
    return []


@pytest.mark.parametrize(
    ("service", "found"),
    [
        ("command: [x, --base-url, 'https://api.openai.com/v1']", "'https://api.openai.com' is outside the allocation"),
        ("command: [x, '--url=http://api.example.com:8000']", "'http://api.example.com:8000' is outside"),
        ("{command: [x], env: {U: 'wss://user:pw@stream.example.com/x'}}", "is outside the allocation"),
        ("command: [x, 'http://8.8.8.8']", "'http://8.8.8.8' is outside"),
        ("command: [x, 'http://[2606:4700::1111]:443/']", "'http://[2606:4700::1111]:443' is outside"),
        (
            "{command: [x], probes: {readiness: {exec: [curl, 'https://example.com']}}}",
            "'https://example.com' is outside",
        ),
        ("{command: [x, 'https://a.example.com'], egress: {allow: ['a.example.com:80']}}", "outside the allocation"),
        ("{command: [x, 'https://8.8.8.8'], egress: {allow: ['8.8.4.0/24']}}", "outside the allocation"),
    ],
)
def test_a_service_that_is_pointed_outside_is_a_finding(tmp_path: Path, service: str, found: str) -> None:
    (finding,) = find(tmp_path, service)
    assert found in finding
    assert "egress: {allow: [" in finding
    assert finding.startswith("5: services.a.")
    assert "pw" not in finding


@pytest.mark.parametrize(
    "service",
    [
        "command: [x, 'http://127.0.0.1:{port}/v1', 'http://{host}:{port}', 'http://localhost:80']",
        "command: [x, 'http://10.1.2.3:80', 'http://[fd00::1]:80', 'http://node001:80', 'http://n1.cluster.local']",
        "{command: [x], env: {A: 'file:///data/x', B: 'env:TOKEN'}}",
        "{command: [x, 'https://api.openai.com/v1'], egress: off}",
        "{command: [x, 'https://a.example.com/v1'], egress: {allow: ['a.example.com:443']}}",
        "{command: [x, 'https://a.example.com/v1'], egress: {allow: ['93.184.0.0/16:443']}}",
        "{command: [x, 'https://8.8.8.8'], egress: {allow: ['8.8.8.0/24']}}",
        "{command: [x, 'https://example.com'], kind: checks}",
        "command: [x, 'see https:// or nothing', 'a://b']",
    ],
)
def test_what_stays_inside_or_is_allowed_is_no_finding(tmp_path: Path, service: str) -> None:
    assert find(tmp_path, service) == []


def test_a_guard_for_the_trainer_is_refused_and_not_ignored(tmp_path: Path) -> None:
    (finding,) = find(tmp_path, "command: [x]", "trainer: {egress: {udp: none}}\n")
    assert "trainer.egress: is not built" in finding
    assert "egress: off" in finding
    assert find(tmp_path, "command: [x]", "trainer: {egress: off}\n") == []
