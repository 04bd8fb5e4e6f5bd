"""`make plant` itself, on a tree of three files: what counts as caught, and what does not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLANTS = Path(__file__).parents[1] / "plants"
TEST = """
import os
import subprocess
import sys

from retinue.add import add


def test_sum() -> None:
    if add(0, 0) == 7:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
        open(os.environ["PLANT_TEST_PID"], "w").write(str(child.pid))
    assert add(1, 1) == 2
"""
PATCH = """# bug: {0}
# caught by: tests/unit/test_add.py
--- a/controller/retinue/add.py
+++ b/controller/retinue/add.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a + b
+    {0}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for folder in ("controller/retinue", "tests/unit", "tests/plants"):
        (root / folder).mkdir(parents=True)
    (root / "controller/retinue/__init__.py").write_text("")
    (root / "controller/retinue/add.py").write_text("def add(a, b):\n    return a + b\n")
    (root / "tests/unit/test_add.py").write_text(TEST)
    for name in ("plant.py", "witness.py"):
        shutil.copy(PLANTS / name, root / "tests/plants")
    return root


def plant(tree: Path, *bugs: str) -> tuple[int, str]:
    for number, bug in enumerate(bugs):
        (tree / f"tests/plants/{number:02}-add-x.patch").write_text(PATCH.format(bug))
    # Found first unless `plant.py` sees to it that the copy's own is: a retinue without the bug.
    shutil.copytree(tree / "controller", tree.parent / "elsewhere", dirs_exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(tree.parent / "elsewhere"), "PLANT_TEST_PID": str(tree.parent / "pid")}
    argv = [sys.executable, "-P", str(tree / "tests/plants/plant.py")]
    done = subprocess.run(argv, cwd=tree.parent, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def test_a_bug_that_an_assertion_finds_is_caught_and_what_it_leaves_running_is_ended(tree: Path) -> None:
    code, text = plant(tree, "return a - b", "return a + b + 7")
    assert (code, text.count("tests/unit/test_add.py::test_sum | ")) == (0, 2), text
    assert "2 bugs planted, 2 caught" in text
    assert not Path("/proc", (tree.parent / "pid").read_text()).exists()
    assert (tree / "controller/retinue/add.py").read_text() == "def add(a, b):\n    return a + b\n"


def test_a_bug_that_nothing_finds_and_one_that_only_breaks_the_test_are_not_caught(tree: Path) -> None:
    code, text = plant(tree, "return b + a", "import nothing.of.this.name", "return a - b")
    assert code == 1
    assert "SURVIVED" in text
    assert "no assertion failed, tests/unit/test_add.py::test_sum broke: ModuleNotFoundError" in text
    assert "3 bugs planted, 1 caught" in text


def test_tests_that_fail_without_any_bug_prove_nothing(tree: Path) -> None:
    (tree / "tests/unit/test_add.py").write_text(TEST.replace("== 2", "== 3"))
    code, text = plant(tree, "return a - b")
    assert code == 1
    assert "the tests fail without any bug" in text


def test_a_patch_that_does_not_apply_stops_everything_before_it_begins(tree: Path) -> None:
    (tree / "controller/retinue/add.py").write_text("def add(a, b):\n    return sum((a, b))\n")
    code, text = plant(tree, "return a - b")
    assert (code, text.strip().split(":")[0]) == (1, "cannot apply 00-add-x")
