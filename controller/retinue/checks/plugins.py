"""Loads verifiers: `module:function`, from the search path.

Whatever is wrong with a plugin is said before the service is ready: no such
module or function, a syntax error, an exception on import, a function that
takes something else. Each message names the entry, the file and the line.
Imports nothing of a verifier until it is asked for that verifier.
"""

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self, cast

from retinue.checks.overdue import Overdue
from retinue.checks.plugin import Verifier
from retinue.errors import PermanentError

BUILTIN = {
    name: f"retinue.checks.verifiers.{name}:check"
    for name in ("math", "numeric", "exact", "json_schema", "regex", "instruction")
}
"""The verifiers that come with retinue, as entries of `with: {verifiers: ...}`."""

_OF_THE_EXTRA = {"math_verify", "latex2sympy2_extended", "sympy", "antlr4", "jsonschema", "referencing"}


class PluginError(PermanentError):
    """A verifier that cannot be loaded or exercised; the checks service must not become ready."""

    def __init__(self, verifier: str, target: str, cause: str) -> None:
        self.verifier = verifier
        self.cause = cause
        super().__init__(f"cannot load verifier {verifier!r} ({target}): {cause}")


class Blame:
    """Around foreign code that is loaded or warmed: whatever it raises, and exit() too, becomes a PluginError."""

    def __init__(self, verifier: str, target: str) -> None:
        self.verifier = verifier
        self.target = target

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, PluginError | KeyboardInterrupt):
            cause = describe_failure(error, self.target.partition(":")[0])
            raise PluginError(self.verifier, self.target, cause) from error


def add_search_path(directories: Iterable[str]) -> None:
    """Let modules be found in these directories as well.

    They come last, so that a plugin called `json.py` breaks nobody's `import json`.
    Errors: PermanentError names the directory that is none.
    """
    for directory in directories:
        path = Path(directory).resolve()
        if not path.is_dir():
            raise PermanentError(f"cannot search {directory!r} for verifiers: it is not a directory")
        if str(path) not in sys.path:
            sys.path.append(str(path))
    importlib.invalidate_caches()


def load_verifier(name: str, target: str) -> Verifier:
    """Import `module:function` and see that it can be called as a verifier is.

    Errors: PluginError says what is wrong, in which file and line.
    """
    module_name, colon, function_name = target.partition(":")
    if not (colon and module_name and function_name.isidentifier()):
        raise PluginError(name, target, f"{target!r} is not of the form 'module:function'")
    with Blame(name, target):
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if function is None:
        raise PluginError(name, target, _describe_missing(module, function_name))
    _check_signature(name, target, function, "response, gold, args")
    for part, parameters in (("prepare", "gold, args"), ("warm", "")):
        found = getattr(function, part, None)
        if found is not None:
            _check_signature(name, target, found, parameters, f"{function_name}.{part}")
    return cast(Verifier, function)


def warm_verifier(name: str, target: str, verifier: Verifier) -> None:
    """Exercise a verifier once, where it says how.

    Errors: PluginError when that raises.
    """
    warm = getattr(verifier, "warm", None)
    if warm is not None:
        with Blame(name, target):
            warm()


def describe_verifier(verifier: Verifier) -> str:
    """Say in one line what a verifier does: the first line of its docstring, or of its module's."""
    module = sys.modules.get(getattr(verifier, "__module__", ""))
    text = inspect.getdoc(verifier) or (inspect.getdoc(module) if module else "") or "no description"
    return text.splitlines()[0]


def describe_failure(error: BaseException, module: str) -> str:
    """Say what was raised, and on which line: the last one of the plugin itself, else the last of all."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.partition(".")[0] in _OF_THE_EXTRA:
            return f"{error.name} is not installed; pip install 'retinue[checks]'"
        if module == error.name or module.startswith(error.name + "."):
            return f"there is no module {error.name!r} in {_list_search_path()}; add its directory to plugin_path"
    what = str(error) if isinstance(error, Overdue) else traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {what}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if _is_file_of(frame.filename, module)]
    # The last frame of all is this module's own call when nothing of the plugin ever ran.
    frame = (own or frames)[-1:]
    return f"{frame[0].filename}:{frame[0].lineno}: {what}" if frame else what


def _is_file_of(filename: str, module: str) -> bool:
    stem = module.replace(".", "/")
    return filename.endswith((f"/{stem}.py", f"/{stem}/__init__.py"))


def _list_search_path() -> str:
    return ", ".join(repr(directory) for directory in sys.path if directory and Path(directory).is_dir())


def _describe_missing(module: ModuleType, function: str) -> str:
    where = getattr(module, "__file__", None) or "a module of Python itself"
    callables = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    near = difflib.get_close_matches(function, callables, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    shadowed = _find_shadowed(module)
    if shadowed:
        hint = f"; it comes before your {shadowed}: give that another name"
    return f"module {module.__name__!r} ({where}) has no function {function!r}{hint}"


def _find_shadowed(module: ModuleType) -> str:
    """Find a file of that name further down the search path: most likely the one that was meant."""
    top = module.__name__.partition(".")[0]
    # A package under way has a spec; a module that a plugin put into sys.modules by hand may have none.
    origin = getattr(getattr(sys.modules.get(top), "__spec__", None), "origin", None)
    for directory in sys.path:
        for path in (Path(directory or ".") / f"{top}.py", Path(directory or ".") / top / "__init__.py"):
            if path.is_file() and str(path.resolve()) != str(Path(origin or "/").resolve()):
                return str(path)
    return ""


def _check_signature(name: str, target: str, function: Any, parameters: str, what: str = "") -> None:
    code = getattr(function, "__code__", None)
    where = f"{code.co_filename}:{code.co_firstlineno}: " if code else ""
    what = what or target.partition(":")[2]
    if not callable(function):
        raise PluginError(name, target, f"{where}{what} is not a function")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise PluginError(name, target, f"{where}{what} must be a plain function, not async and not a generator")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # written in C without a signature: only calling it can tell
    try:
        signature.bind(*([None] * len(parameters.split(", ") if parameters else [])))
    except TypeError:
        raise PluginError(name, target, f"{where}{what}{signature} cannot be called with ({parameters})") from None
