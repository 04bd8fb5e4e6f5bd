"""templates/user-simulator.yaml and the command line that it stands for say the same."""

from pathlib import Path

import pytest

from retinue.errors import ManifestError
from retinue.manifest.load import load_manifest
from retinue.manifest.template import Shelf
from retinue.simulator.main import build_parser, build_settings
from retinue.simulator.settings import Settings

TEMPLATE = Path(__file__).parents[2] / "templates" / "user-simulator.yaml"
REPLICA = {"RETINUE_REPLICA": "customer/0", "RETINUE_NODE": "n7"}
ALONE = {"--model-url"}
"""For a simulator outside a run."""


def build(words: str) -> Settings:
    text = f"retinue: 1\nrun: {{name: x}}\nservices:\n  customer: {{template: user-simulator, with: {words}}}\n"
    shelf = Shelf({"user-simulator": ("user-simulator.yaml", TEMPLATE.read_text())})
    command = load_manifest(text, "m", lambda directories: shelf).services["customer"].command
    assert command is not None
    argv = [str(word).replace("{port}", "0") for word in command[command.index("retinue.simulator") + 1 :]]
    parsed = build_parser().parse_args(argv)
    assert (parsed.model_service, parsed.model_url) == ("judge", None)
    return build_settings(parsed, REPLICA)


def test_a_service_that_says_no_more_than_it_must_has_the_defaults_of_the_code() -> None:
    assert build("{model_service: judge, personas: /p}") == Settings(service="customer", node="n7")


def test_every_parameter_arrives() -> None:
    settings = build(
        "{model_service: judge, personas: /p, model: m, turns: 3, max_tokens: 4, temperature: 0.1, attempts: 5,"
        " message_chars: 600, history_chars: 700, timeout: 8s, workers: 9, queue: 10, queue_memory: 2MiB}"
    )
    assert settings == Settings("m", 3, 4, 0.1, 5, 600, 700, 8.0, 9, 10, 2 * 2**20, "customer", "n7")


def test_the_template_passes_every_option_that_a_person_can_give() -> None:
    options = {text for action in build_parser()._actions for text in action.option_strings} - {"-h", "--help"}
    passed = {line.strip("- \n") for line in TEMPLATE.read_text().splitlines() if line.strip().startswith("- --")}
    assert {option.strip("-") for option in options - ALONE} == passed


@pytest.mark.parametrize("words", ["{}", "{model_service: judge}", "{model_service: judge, personas: /p, turns: 0}"])
def test_a_parameter_that_has_no_meaning_is_a_finding(words: str) -> None:
    with pytest.raises(ManifestError):
        build(words)
