"""What the pages say is so: links, words, examples, commands, rooms. The generated pages have tests of their own.

Reads every page that a person reads; starts nothing but Python itself.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from retinue.allocation.described import parse_description
from retinue.cli.main import cli
from retinue.doctor import remedies
from retinue.doctor.judgement import PROBES
from retinue.manifest.files import read_manifest
from retinue.plan.build import build_plan
from retinue.supervise.ending import Cause
from retinue.terms import replica
from test_rooms import FLOORS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("sbatch/*.md"), *ROOT.glob("templates/*.md")]
)
README = ROOT / "README.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
FAULTS = ROOT / "docs" / "faults.md"
DOCTOR = ROOT / "docs" / "doctor.md"

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
LINE_LENGTH_MAX = 400

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def read_blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def read_prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def read_anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", read_prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def read_table_words(page: Path, heading: str) -> set[str]:
    """The words in the first column of the tables below one heading."""
    section = re.split(rf"^## {re.escape(heading)}$", page.read_text(), flags=re.MULTILINE)[1]
    rows = re.findall(r"^\| ([^|]+) \|", re.split(r"^## ", section, flags=re.MULTILINE)[0], re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def list_subclasses(kind: type) -> set[str]:
    found = (item for item in vars(replica).values() if inspect.isclass(item) and issubclass(item, kind))
    return {item.__name__ for item in found if item is not kind}


# --- every page --------------------------------------------------------------------


@every_page
def test_a_relative_link_leads_to_a_file_and_its_heading(page: Path) -> None:
    for target in LINK.findall(read_prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        where = (page.parent / path).resolve() if path else page
        assert where.exists(), f"{target} leads nowhere"
        if anchor:
            assert anchor in read_anchors(where), f"{target}: no such heading"


@every_page
def test_a_fence_that_is_opened_is_closed_and_no_line_is_endless(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert sum(line.startswith("```") for line in lines) % 2 == 0
    for number, line in enumerate(lines, 1):
        assert len(line) <= LINE_LENGTH_MAX, f"line {number} has {len(line)} characters"
        assert line == line.rstrip(), f"line {number} ends in blanks"


@every_page
def test_no_place_of_one_machine_is_named(page: Path) -> None:
    text = page.read_text()
    places = ("/" + "work", "/" + "root/", "/" + "home/", "/tmp/" + "v0", "/Users/")
    assert [place for place in places if place in text] == []


@every_page
def test_a_manifest_in_a_page_passes_the_checker_and_can_be_planned(page: Path, tmp_path: Path) -> None:
    for block in read_blocks(page, "yaml"):
        if not re.search(r"^retinue: 1$", block, re.MULTILINE):
            continue
        (tmp_path / "first.yaml").write_text(block)
        manifest = read_manifest(tmp_path / "first.yaml")
        allocation = parse_description("n[1-2]", 8, 64)
        plan = build_plan(manifest, allocation, ("true",), str(ROOT), str(tmp_path), str(tmp_path / "attempt-0"))
        assert [service.name for service in plan.services] == list(manifest.services)


@every_page
def test_a_file_of_ours_that_a_page_names_is_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return
    for name in re.findall(r"`((?:controller/retinue|tests|docs|templates)/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / name).is_file(), f"{name} is not there"


# --- README ------------------------------------------------------------------------


def test_the_readme_shows_one_whole_manifest_of_twenty_lines_or_less() -> None:
    manifests = [block for block in read_blocks(README, "yaml") if block.startswith("retinue: 1\n")]
    assert len(manifests) == 1
    assert len(manifests[0].splitlines()) <= 20


def test_the_files_that_the_readmes_manifest_starts_are_in_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(read_blocks(README, "yaml")[0])
    words = [word for service in read_manifest(tmp_path / "first.yaml").services.values() for word in service.command]
    assert "docs/quickstart/service.py" in words
    assert all((ROOT / word).exists() for word in words if word.startswith("docs"))


def test_python_in_a_page_is_python() -> None:
    blocks = [block for page in PAGES for block in read_blocks(page, "python")]
    assert blocks
    for block in blocks:
        ast.parse(block)


def find_named_commands(page: Path) -> Iterator[str]:
    """`retinue WORD` in code spans and in fenced blocks."""
    text = page.read_text()
    code = [*re.findall(r"`([^`\n]+)`", FENCE.sub("", text)), *(body for _, body in FENCE.findall(text))]
    for piece in code:
        yield from re.findall(r"(?:^|[\s;&])retinue +([a-z][a-z-]*)", piece)


@every_page
def test_a_command_that_a_page_names_exists(page: Path) -> None:
    unknown = set(find_named_commands(page)) - set(cli.commands)
    assert page.name == "manifest.md" or not unknown, f"there is no retinue {unknown}"


def test_every_command_has_its_row_in_the_readme() -> None:
    rows = {row.split()[1] for row in read_table_words(README, "Commands") if row.startswith("retinue ")}
    assert rows == set(cli.commands)


def test_an_option_that_the_readme_names_beside_a_command_is_one_of_its_options() -> None:
    for name, row in re.findall(r"^\| `retinue ([a-z]+)[^`]*` \| (.+) \|$", README.read_text(), re.MULTILINE):
        known = {flag for param in cli.commands[name].params if isinstance(param, click.Option) for flag in param.opts}
        named = set(re.findall(r"(?<!\w)--?[a-z][a-z-]*", " ".join(re.findall(r"`([^`]+)`", row))))
        assert named <= known, f"retinue {name} has no {named - known}"


# --- glossary, architecture, faults --------------------------------------------------


def test_the_glossary_has_exactly_the_words_of_the_code() -> None:
    assert read_table_words(GLOSSARY, "Phases of a replica") == {phase.value for phase in replica.Phase}
    assert read_table_words(GLOSSARY, "Events of a replica") == list_subclasses(replica.Event)
    assert read_table_words(GLOSSARY, "Actions") == list_subclasses(replica.Action)
    assert read_table_words(GLOSSARY, "Who ended the run") == {cause.value for cause in Cause}


def test_the_glossary_knows_the_choices_of_on_exhausted() -> None:
    text = GLOSSARY.read_text()
    assert [choice for choice in replica.OnExhausted if f"on_exhausted: {choice.value}" not in text] == []


def test_the_rooms_of_the_picture_are_the_rooms_of_the_code_on_their_floors() -> None:
    [picture] = read_blocks(ARCHITECTURE, "rooms")
    drawn = {room: int(line.split()[0]) for line in picture.splitlines() for room in line.split()[1:]}
    package = ROOT / "controller" / "retinue"
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert set(drawn) == folders | {"errors"}
    assert drawn == {room: floor for room, floor in FLOORS.items() if room in drawn}
    assert read_table_words(ARCHITECTURE, "Rooms") == set(drawn)


def test_the_files_of_the_rooms_with_several_processes_are_there() -> None:
    rows = re.findall(r"^\| [a-z ]+ \| `(\w+)/`: (.+) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    assert {room for room, _ in rows} == {"node", "egress", "supervise", "sandbox"}
    for room, text in rows:
        for name in re.findall(r"`([\w*]+)`", text):
            assert list((ROOT / "controller" / "retinue" / room).glob(f"{name}.py")), f"{room} has no {name}"


def test_every_fault_is_tested_in_files_that_exist() -> None:
    lines = [line for line in FAULTS.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    faults = [row for row in rows if row[0] != "what goes wrong"]
    assert len(faults) > 30
    for row in faults:
        assert len(row) == 4, f"{row[0]} has {len(row)} columns"
        files = re.findall(r"`([\w/]+\.py)`", row[3])
        assert files, f"{row[0]} names no test"
        assert [name for name in files if not (ROOT / "tests" / name).is_file()] == [], row[0]


def test_every_probe_of_the_doctor_has_its_section() -> None:
    assert re.findall(r"^## ([a-z-]+)$", DOCTOR.read_text(), re.MULTILINE) == list(PROBES)


def test_every_remedy_of_the_doctor_is_in_its_page_word_for_word() -> None:
    page = " ".join(DOCTOR.read_text().replace("`", "").split())
    named = {"python": "PYTHON", "kind": "KIND", "masks": "MASKS", "lsm": "LSM", "path": "PATH", "user": "USER"}
    texts = {name: text for name, text in vars(remedies).items() if name.isupper() and name not in ("YOU", "ADMIN")}
    assert len(texts) > 25
    assert [name for name, text in texts.items() if text.format(**named).replace("`", "") not in page] == []


def test_decisions_are_numbered_without_a_gap_and_have_their_three_parts() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [page.name[:5] for page in pages] == [f"{number:04}-" for number in range(1, len(pages) + 1)]
    for page in pages:
        assert re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE) == ["Context", "Decision", "Consequence"]
        assert len(page.read_text().splitlines()) <= 40, f"{page.name} is longer than half a page"
