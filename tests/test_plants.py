"""The planted bugs stay plantable: each patch still applies, plants something, and names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

from plants.plant import ROOT, Edit, Plant, PlantError, apply_plant, parse_plant, read_plants

PLANTS = read_plants()
PACKAGE = "controller/retinue/"
DIFF = """# bug: it adds one too many
# caught by: tests/unit/test_add.py::test_sum
--- a/add.py
+++ b/add.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a + b
+    return a + b + 1
"""


def test_there_are_enough_of_them_in_order() -> None:
    assert len(PLANTS) >= 20
    assert [plant.name[:2] for plant in PLANTS] == [f"{number:02}" for number in range(1, len(PLANTS) + 1)]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_patch_applies_to_the_tree_of_its_room_and_is_still_python(plant: Plant) -> None:
    assert re.fullmatch(r"\d\d-[a-z]+(-[a-z0-9]+)+", plant.name)
    room = f"{PACKAGE}{plant.name.split('-')[1]}/"
    for path, text in apply_plant(plant, ROOT).items():
        assert path.startswith(room)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse((ROOT / path).read_text()))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_a_patch_names_tests_that_are_there(plant: Plant) -> None:
    for test in plant.tests:
        path, _, name = test.partition("::")
        assert path.startswith("tests/")
        assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_a_patch_is_read_with_its_sentences_and_its_lines() -> None:
    edit = Edit("add.py", "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a + b + 1\n")
    plant = Plant("01-a-b", "it adds one too many", ("tests/unit/test_add.py::test_sum",), (edit,))
    assert parse_plant("01-a-b", DIFF) == plant


@pytest.mark.parametrize(
    "text",
    ["", DIFF.replace("# bug", "# Bug"), DIFF.replace("# caught by", "#"), DIFF.replace("-1,2 +1,2", "-1,9 +1,9")],
)
def test_a_patch_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(PlantError, match="cannot read 01-a-b"):
        parse_plant("01-a-b", text)


@pytest.mark.parametrize(
    ("tree", "word"),
    [
        ("def add(a, b):\n    return b + a\n", "are not there"),
        ("def add(a, b):\n    return a + b\n" * 2, "are there 2 times"),
        ("async def add(a, b):\n    return a + b\n", "are not there"),
        (None, "there is no add.py"),
    ],
)
def test_a_patch_that_does_not_apply_is_named_with_the_reason(tmp_path: Path, tree: str | None, word: str) -> None:
    if tree is not None:
        (tmp_path / "add.py").write_text(tree)
    with pytest.raises(PlantError, match=f"cannot apply 01-a-b: .*{word}"):
        apply_plant(parse_plant("01-a-b", DIFF), tmp_path)


def test_line_numbers_may_be_wrong_and_the_tree_is_not_touched(tmp_path: Path) -> None:
    tree = "import x\n\n\ndef add(a, b):\n    return a + b\n"
    (tmp_path / "add.py").write_text(tree)
    texts = apply_plant(parse_plant("01-a-b", DIFF), tmp_path)
    assert texts == {"add.py": tree.replace("a + b", "a + b + 1")}
    assert (tmp_path / "add.py").read_text() == tree
