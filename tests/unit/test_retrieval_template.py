"""templates/retrieval.yaml and the command line that it stands for say the same."""

from pathlib import Path

import pytest

from retinue.errors import ManifestError
from retinue.manifest.load import load_manifest
from retinue.manifest.template import Shelf
from retinue.retrieval.main import build_parser, build_settings
from retinue.retrieval.records import Method
from retinue.retrieval.settings import Settings

TEMPLATE = Path(__file__).parents[2] / "templates" / "retrieval.yaml"
REPLICA = {"RETINUE_REPLICA": "corpus/3", "RETINUE_INCARNATION": "2", "RETINUE_NODE": "n7"}


def build(words: str) -> tuple[Settings, list[str]]:
    text = f"retinue: 1\nrun: {{name: x}}\nservices:\n  corpus: {{template: retrieval, with: {words}}}\n"
    shelf = Shelf({"retrieval": ("retrieval.yaml", TEMPLATE.read_text())})
    command = load_manifest(text, "m", lambda directories: shelf).services["corpus"].command
    assert command is not None
    argv = [str(word).replace("{port}", "0") for word in command[command.index("retinue.retrieval") + 1 :]]
    parsed = build_parser().parse_args(argv)
    return build_settings(parsed, REPLICA), parsed.plugin_path


def test_a_service_that_says_nothing_but_its_index_has_the_defaults_of_the_code() -> None:
    settings, path = build("{index: /scratch/wiki}")
    plain = Settings("/scratch/wiki", service="corpus", node="n7", incarnation="corpus/3#2", workers=settings.workers)
    assert (settings, path) == (plain, [])
    assert settings.workers >= 1


def test_every_parameter_arrives(tmp_path: Path) -> None:
    settings, path = build(
        "{index: /i, method: dense, top_k: 7, workers: 5, queue: 9, queue_memory: 2MiB, embedder: /models/e5,"
        f" reranker: 'mine:rerank', plugin_path: ['{tmp_path}']}}"
    )
    wanted = Settings(
        "/i", Method.DENSE, 7, 5, 9, 2 * 2**20, "/models/e5", "mine:rerank", "corpus", "n7", "corpus/3#2"
    )  # fmt: skip
    assert (settings, path) == (wanted, [str(tmp_path)])


def test_the_template_passes_every_option_that_a_person_can_give() -> None:
    options = {text for action in build_parser()._actions for text in action.option_strings} - {"-h", "--help"}
    passed = {line.strip("- \n") for line in TEMPLATE.read_text().splitlines() if line.strip().startswith("- --")}
    assert {option.strip("-") for option in options} == passed


@pytest.mark.parametrize(
    "words", ["{}", "{index: /i, method: magic}", "{index: /i, top_k: 0}", "{index: /i, reranker: x}"]
)
def test_a_parameter_that_has_no_meaning_is_a_finding(words: str) -> None:
    with pytest.raises(ManifestError):
        build(words)
