"""What a manifest says about a service's callers reaches the gateways, and nonsense is a finding."""

import pytest

from retinue.errors import ManifestError
from retinue.manifest.load import load_manifest
from retinue.plan.launches import build_service
from retinue.plan.records import ServicePlan
from retinue.terms.calls import CallRules
from retinue.terms.record import from_json, to_json

HEAD = "retinue: 1\nrun: {name: x}\nservices:\n  judge:\n    command: [serve, '{port}']\n"


def build(rest: str) -> ServicePlan:
    manifest = load_manifest(HEAD + rest, "m.yaml")
    return build_service("judge", manifest.services["judge"], ("judge/0",), 0)


def test_a_service_that_says_nothing_is_called_by_the_defaults() -> None:
    assert build("").calls == CallRules()


def test_every_setting_reaches_the_plan_and_survives_the_way_to_the_controller() -> None:
    plan = build(
        "    gateway: {concurrency: 8, queue: 0, memory: 1MiB, affinity: X-Episode, connect_timeout: 500ms,"
        " read_timeout: 10m, unavailable_status: 503}\n"
    )
    assert plan.calls == CallRules(8, 0, 2**20, "X-Episode", 0.5, 600.0, 503)
    assert from_json(to_json(plan), ServicePlan) == plan


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("concurrency: 0", "gateway.concurrency"),
        ("queue: 9000", "gateway.queue"),
        ("memory: 64", "gateway.memory"),
        ("affinity: 'X Session'", "gateway.affinity"),
        ('affinity: "X\\r\\nY: 1"', "gateway.affinity"),
        ("read_timeout: 0s", "gateway.read_timeout"),
        ("unavailable_status: 200", "gateway.unavailable_status"),
        ("retries: 3", "gateway"),
    ],
)
def test_a_setting_that_means_nothing_is_a_finding_at_its_line(setting: str, path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        build(f"    gateway:\n      {setting}\n")
    (finding,) = caught.value.findings
    assert (finding.line, finding.path) == (7, f"services.judge.{path}")


def test_a_service_without_a_url_cannot_have_settings_of_it() -> None:
    with pytest.raises(ManifestError) as caught:
        build("    protocol: tcp\n    gateway: {queue: 5}\n")
    (finding,) = caught.value.findings
    assert (finding.path, "no URL" in finding.what) == ("services.judge.gateway", True)
