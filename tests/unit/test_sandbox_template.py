"""templates/sandbox.yaml and the command line that it stands for say the same."""

from pathlib import Path

from retinue.manifest.load import load_manifest
from retinue.manifest.template import Shelf
from retinue.sandbox.host_settings import OVERCOMMIT, HostSettings
from retinue.sandbox.main import build_parser, build_settings
from retinue.sandbox.node_memory import read_limit_bytes
from retinue.sandbox.requests import Limits

TEMPLATE = Path(__file__).parents[2] / "templates" / "sandbox.yaml"
REPLICA = {"RETINUE_REPLICA": "sandbox/3", "RETINUE_INCARNATION": "2", "RETINUE_NODE": "n7"}
GIVEN = """{store: images, limits: {disk: 1GiB, inodes: 1000, memory: 2GiB, pids: 64, cpu: 30s, wall: 5m, output: 10KiB,
  shm: 1MiB}, budget: {count: 25000, memory: 1TiB, processes: 100000}, queue: 7, queue_limit: 1m, lease: 2h,
  image_idle: 3m, memory_min: 2GiB, shards: 5, unpack_to: /fast, allow_degraded: true}"""


def build(words: str, place: Path) -> HostSettings:
    text = f"retinue: 1\nrun: {{name: x}}\nservices:\n  sandbox: {{template: sandbox, with: {words}}}\n"
    shelf = Shelf({"sandbox": ("sandbox.yaml", TEMPLATE.read_text())})
    command = load_manifest(text, "m", lambda directories: shelf).services["sandbox"].command
    assert command is not None
    argv = [str(word).replace("{port}", "0") for word in command[command.index("retinue.sandbox") + 1 :]]
    return build_settings(build_parser().parse_args(argv), REPLICA, place)


def test_a_service_that_says_nothing_but_its_store_has_the_defaults_of_the_code(tmp_path: Path) -> None:
    settings = build("{store: /images}", tmp_path)
    assert settings.limits == Limits()
    plain = HostSettings("/images", settings.base, settings.logs, Limits(), settings.budget, settings.shards)
    for name in ("queue", "queue_s", "lease_s", "image_idle_s", "allow_degraded", "memory_min_bytes", "unpack_to"):
        assert getattr(settings, name) == getattr(plain, name), name
    assert settings.budget.memory_bytes == OVERCOMMIT * read_limit_bytes()
    assert (settings.id_prefix, settings.node, settings.incarnation) == ("sandbox.3-", "n7", "sandbox/3#2")


def test_every_parameter_arrives(tmp_path: Path) -> None:
    settings = build(GIVEN, tmp_path)
    gib = 2**30
    assert settings.limits == Limits(gib, 1000, 2 * gib, 64, 30.0, 300.0, 10 * 1024, 2**20)
    assert (settings.budget.count, settings.budget.memory_bytes, settings.budget.process_count) == (
        25000,
        2**40,
        100000,
    )
    assert (settings.queue, settings.queue_s, settings.lease_s, settings.image_idle_s) == (7, 60.0, 7200.0, 180.0)
    assert (settings.memory_min_bytes, settings.shards, settings.unpack_to) == (2 * gib, 5, "/fast")
    assert settings.allow_degraded


def test_the_template_passes_every_option_that_a_person_can_give() -> None:
    options = {text for action in build_parser()._actions for text in action.option_strings} - {"-h", "--help"}
    passed = {line.strip("- \n") for line in TEMPLATE.read_text().splitlines() if line.strip().startswith("- --")}
    assert {option.strip("-") for option in options} - passed == {"program"}
