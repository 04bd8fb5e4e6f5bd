"""Loading verifiers: what is wrong with a plugin is said with file and line, before the service is ready."""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from retinue.checks import plugins
from retinue.checks.plugins import BUILTIN, PluginError, add_search_path, load_verifier, warm_verifier
from retinue.errors import PermanentError
from test_rooms import find_imports

CHECKS = Path(plugins.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
OF_THE_VERIFIERS = {"math_verify", "latex2sympy2_extended", "sympy", "jsonschema", "referencing"}
NO_TIMERS = {"signal", "threading", "multiprocessing", "asyncio", "subprocess", "concurrent", "time", "os", "socket"}

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Write]:
    """Write a plugin module into a directory of the search path; both are forgotten afterwards."""
    before, modules = list(sys.path), set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        add_search_path([str(tmp_path)])
        return path

    yield write
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("name", BUILTIN)
def test_a_verifier_that_comes_with_retinue_loads_warms_and_says_what_it_does(name: str) -> None:
    verifier = load_verifier(name, BUILTIN[name])
    warm_verifier(name, BUILTIN[name], verifier)
    assert callable(getattr(verifier, "prepare", None))
    assert len(plugins.describe_verifier(verifier)) > 10


def test_a_plugin_of_one_function_is_loaded_and_described_by_its_first_line(write: Write) -> None:
    write("rewards_one", 'def check(response, gold, args):\n    """Shout.\n\n    Loudly.\n    """\n    return 1.0\n')
    verifier = load_verifier("shout", "rewards_one:check")
    assert verifier("", None, {}) == 1.0
    assert plugins.describe_verifier(verifier) == "Shout."


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("def check(response, gold, args)\n    return 1\n", 1, "SyntaxError"),
        ("import json\nimport no_such_library\n", 2, "no_such_library"),
        ("\n\nx = 1 / 0\n", 3, "ZeroDivisionError"),
        ("def f():\n    raise KeyError('x')\n\nf()\n", 2, "KeyError"),
        ("import sys\nsys.exit(0)\n", 2, "SystemExit"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("class Odd(BaseException): pass\nraise Odd('odd')\n", 2, "Odd"),
        ("\ndef check(response): return 1.0\n", 2, "response, gold, args"),
        ("\nasync def check(response, gold, args): return 1.0\n", 2, "async"),
        ("def check(response, gold, args): return 1.0\ndef p(gold): return gold\ncheck.prepare = p\n", 2, "gold, args"),
        ("def check(response, gold, args): return 1.0\ndef w(x): pass\ncheck.warm = w\n", 2, r"check\.warm"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said_with_its_line(write: Write, text: str, line: int, told: str) -> None:
    path = write("rewards_wrong", text)
    with pytest.raises(PluginError, match=told) as caught:
        load_verifier("mine", "rewards_wrong:check")
    assert f"{path}:{line}: " in str(caught.value)
    assert "'mine' (rewards_wrong:check)" in str(caught.value)


def test_an_exception_while_warming_is_said_with_its_line(write: Write) -> None:
    text = (
        "def check(response, gold, args): return 1.0\ndef warm():\n    raise OSError('no model')\ncheck.warm = warm\n"
    )
    path = write("rewards_cold", text)
    verifier = load_verifier("mine", "rewards_cold:check")
    with pytest.raises(PluginError, match=re.escape(f"{path}:3: OSError: no model")):
        warm_verifier("mine", "rewards_cold:check", verifier)


def test_ctrl_c_while_a_plugin_is_imported_is_no_fault_of_the_plugin(write: Write) -> None:
    write("rewards_slow", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_verifier("mine", "rewards_slow:check")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("no_such_module:check", "no module 'no_such_module'.*plugin_path"),
        ("no.such.module:check", "no module 'no'"),
        ("json:dumbs", "did you mean 'dumps'"),
        ("sys:check", "a module of Python itself"),
        ("json", "module:function"),
        (":check", "module:function"),
        ("json:", "module:function"),
        ("json:a b", "module:function"),
        ("json:__name__", "not a function"),
    ],
)
def test_a_target_that_leads_nowhere_says_what_was_looked_for(target: str, told: str) -> None:
    with pytest.raises(PluginError, match=told):
        load_verifier("mine", target)


def test_a_missing_library_of_the_extra_is_named_with_the_line_that_installs_it(write: Write) -> None:
    write("rewards_math", "raise ModuleNotFoundError(\"No module named 'math_verify'\", name='math_verify')\n")
    with pytest.raises(PluginError, match=r"pip install 'retinue\[checks\]'"):
        load_verifier("math", "rewards_math:check")


def test_a_plugin_called_like_a_module_of_python_is_not_imported_in_its_place(write: Write) -> None:
    path = write("json", "raise RuntimeError('shadowed')\n")
    found = PathFinder.find_spec("json")
    assert found is not None
    assert found.origin not in (None, str(path))


@pytest.mark.parametrize("name", ["json", "pytest"])
def test_a_plugin_that_another_module_of_its_name_hides_is_told_to_take_another(write: Write, name: str) -> None:
    path = write(name, "def check(response, gold, args): return 1.0\n")
    told = f"has no function 'check'; it comes before your {path}: give that another name"
    with pytest.raises(PluginError, match=re.escape(told)):
        load_verifier("mine", f"{name}:check")


def test_a_search_path_that_is_no_directory_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="absent"):
        add_search_path([str(tmp_path / "absent")])


def test_the_plugins_in_the_documentation_load_and_score(write: Write) -> None:
    page = (DOCS / "checks.md").read_text()
    [text] = [
        body for body in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL) if "def check" in body
    ]
    write("palindrome", text)
    verifier = load_verifier("palindrome", "palindrome:check")
    prepared = verifier.prepare({"min_words": 2}, {})  # type: ignore[attr-defined]
    assert verifier("Never odd or even", prepared, {}) == (1.0, "a palindrome of 4 words")
    assert verifier("even", prepared, {})[0] == 0.0  # type: ignore[index]
    with pytest.raises(ValueError, match="min_words"):
        verifier.prepare({}, {})  # type: ignore[attr-defined]


def test_the_libraries_of_the_verifiers_are_imported_by_verifiers_only() -> None:
    for path in CHECKS.rglob("*.py"):
        tops = {name.partition(".")[0] for name in find_imports(path)}
        if path.parent.name == "verifiers":
            assert not tops & NO_TIMERS, f"{path.name} is killed from outside and needs none of these"
        else:
            assert not tops & OF_THE_VERIFIERS, path


def test_loading_imports_no_verifier_that_was_not_asked_for() -> None:
    tree = ast.parse(Path(plugins.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any("verifiers" in name for name in names | modules)
