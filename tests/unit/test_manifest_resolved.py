"""The resolved manifest says the same as the one it came from, for anything a manifest can say."""

import random
from typing import Any

import yaml

from retinue.manifest.load import check_manifest, load_manifest
from retinue.manifest.resolve import dump_manifest
from retinue.manifest.schema import parse_secret

WORDS = (
    "x",
    "no",
    "010",
    "~",
    "",
    " a b ",
    "{port}",
    "{{a}}",
    "1:30:00",
    "ü€",
    "- a",
    "# b",
    "a: b",
    "\n",
    "null",
    "'",
)


def build_probe(dice: random.Random, name: str) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"http": "/health"},
        {"http": {"path": "/", "port": dice.randrange(1, 65536)}},
        {"tcp": "true"},
        {"tcp": dice.randrange(1, 65536)},
        {"exec": ["test", dice.choice(WORDS)]},
    ]
    probe = {**dice.choice(kinds), "period": f"{dice.randrange(1, 10**6)}ms", "failures": dice.randrange(1, 9)}
    if name == "startup":
        probe["budget"] = f"{dice.randrange(1, 90)}m"
    return probe


def build_service(dice: random.Random, before: list[str], groups: list[str]) -> dict[str, Any]:
    service: dict[str, Any] = {"command": ["run", *dice.choices(WORDS, k=3)]}
    optional: dict[str, Any] = {
        "kind": dice.choice(("judge", "retrieval", "user-simulator", "checks", "sandbox", "command")),
        "place": {"gpus": dice.randrange(9), "memory": f"{dice.randrange(2**40)}B", "strategy": "pack"},
        "restart": {"backoff": f"{dice.randrange(300)}s", "on_exhausted": "hold", "success": [0, 7], "limit": 0},
        "depends_on": dice.choice((before, dict.fromkeys(before, "started"), {n: {"restart": "true"} for n in before})),
        "env": {f"V{n}": dice.choice((*WORDS, "env:TOKEN", "file:/secret")) for n in range(3)},
        "cwd": dice.choice(WORDS),
        "keep_env": ["SLURM_*", "RANK"],
        "probes": {
            name: build_probe(dice, name) for name in ("startup", "readiness", "liveness") if dice.random() < 0.6
        },
        "stop": {"signal": dice.choice(("INT", "KILL")), "grace": f"{dice.randrange(99)}s"},
        "egress": dice.choice(("off", {"udp": "full", "allow": ["10.0.0.0/8", "h:1"]}, {})),
        "port_reuse": "false",
        "listen": "node",
        "protocol": "tcp",
        "okay_delay": "0s",
        "min_ready": dice.randrange(2),
    }
    service |= {key: value for key, value in optional.items() if dice.random() < 0.5}
    service |= dice.choice(({"replicas": dice.randrange(1, 99)}, {"per_node": dice.choice(groups)}, {}))
    return service


def build_requeue(dice: random.Random) -> dict[str, Any]:
    ends = dice.sample(("preempted", "node_fail"), dice.randrange(3))
    return {"requeue": {"on": ends, "max": dice.randrange(1, 9)}} if ends else {}


def build_manifest(dice: random.Random) -> dict[str, Any]:
    groups = [f"g{n}" for n in range(dice.randrange(3))]
    services: dict[str, Any] = {}
    for n in range(dice.randrange(1, 5)):
        services[f"s-{n}"] = build_service(dice, list(services), ["all", *groups])
    manifest: dict[str, Any] = {
        "retinue": 1,
        "run": {"name": "r", "drain": f"{dice.randrange(99)}s", **build_requeue(dice)},
        "services": services,
    }
    if groups:
        manifest["nodes"] = {name: {"count": dice.choice((1, 2))} for name in groups}
        manifest["trainer"] = {"on": groups[0], "egress": "off"}
    if dice.random() < 0.5:
        manifest |= {"node": {"namespace": "off"}, "launch": {"python": "/opt/python"}}
    return manifest


def test_random_manifests_survive_being_resolved_and_read_again() -> None:
    dice = random.Random(20)
    for _ in range(60):
        text = yaml.safe_dump(build_manifest(dice), sort_keys=False, allow_unicode=True)
        manifest = load_manifest(text, "m")
        resolved = dump_manifest(manifest)
        assert load_manifest(resolved, "m") == manifest
        assert dump_manifest(load_manifest(resolved, "m")) == resolved


def test_only_what_differs_from_the_defaults_is_written() -> None:
    text = "retinue: 1\nrun: {name: x, drain: 120s}\nservices: {a: {command: [x, no], replicas: 1, egress: off}}\n"
    assert dump_manifest(load_manifest(text, "m")).splitlines()[1:] == [
        "retinue: 1",
        "run:",
        "  name: x",
        "services:",
        "  a:",
        "    command:",
        "    - x",
        "    - 'no'",
        "    restart:",
        "      success:",
        "      - 0",
        "    egress: 'off'",
    ]


def test_only_references_are_secrets_and_a_url_is_a_value() -> None:
    asked = ("env:TOKEN", "file:/key", "file:///data", "ENV:x", "http://x", "")
    assert [parse_secret(value) for value in asked] == [("env", "TOKEN"), ("file", "/key"), None, None, None, None]


def test_the_order_of_services_and_groups_is_kept() -> None:
    text = (
        "retinue: 1\nrun: {name: x}\nnodes: {z: {count: 1}, a: {count: rest}}\n"
        "services: {z: {command: [x]}, m: {command: [x]}, a: {command: [x]}}\n"
    )
    again = load_manifest(dump_manifest(load_manifest(text, "m")), "m")
    assert (list(again.nodes), list(again.services)) == (["z", "a"], ["z", "m", "a"])


def test_a_secret_stays_a_reference_whatever_the_environment_holds() -> None:
    text = (
        "retinue: 1\nrun: {name: x}\nservices: {a: {command: [x], env: {KEY: 'env:HOME', F: 'file:/etc/hostname'}}}\n"
    )
    resolved = dump_manifest(load_manifest(text, "m"))
    assert "KEY: env:HOME" in resolved
    assert "F: file:/etc/hostname" in resolved


def test_the_default_of_success_is_written_down_when_resolved() -> None:
    text = (
        "retinue: 1\nrun: {name: x}\nservices:\n"
        "  job: {command: [x]}\n"
        "  served: {command: [x, '{port}']}\n"
        "  escaped: {command: [x, '{{port}}']}\n"
        "  asked: {command: [x], probes: {readiness: {tcp: 80}}}\n"
        "  told: {command: [x, '{port}'], restart: {success: [4]}}\n"
    )
    services = load_manifest(dump_manifest(load_manifest(text, "m")), "m").services
    written = {name: service.restart.success for name, service in services.items()}
    assert written == {"job": (0,), "served": (), "escaped": (0,), "asked": (), "told": (4,)}
    assert [name for name, service in services.items() if service.has_port] == ["served", "told"]


def test_a_damaged_text_is_a_report_or_a_manifest_and_never_a_crash() -> None:
    dice = random.Random(21)
    scraps = (
        "{",
        "}",
        "[",
        "]",
        ":",
        "\n",
        "- ",
        "'",
        '"',
        "&a ",
        "*a",
        "!!int ",
        "<<: ",
        "#",
        "|",
        "\t",
        "{port}",
        "",
    )
    text = yaml.safe_dump(build_manifest(dice), sort_keys=False, allow_unicode=True)
    for _ in range(150):
        start = dice.randrange(len(text))
        damaged = text[:start] + dice.choice(scraps) + text[start + dice.choice((0, 1, 9)) :]
        findings = check_manifest(damaged)
        assert all(0 <= finding.line <= damaged.count("\n") + 2 for finding in findings)
        if not findings:
            manifest = load_manifest(damaged, "m")
            assert load_manifest(dump_manifest(manifest), "m") == manifest
