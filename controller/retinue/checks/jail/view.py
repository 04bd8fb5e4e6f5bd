"""What a check may see of the file system: decided here, built in `root`. Touches nothing.

The deeper path wins: a run directory inside a plugin directory inside a home is hidden, shown and
hidden again. What is neither named here nor below a hidden path stays readable with the user's own rights.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HIDDEN = ("/home", "/root", "/tmp", "/var/tmp", "/run", "/var/run", "/proc", "/sys", "/dev")
KEPT_ON_TOP = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "var")
"""Everything else on top of the file system (scratch, data, work directories) is somebody's, and hidden."""
HIDDEN_VARIABLES = (
    "HOME",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "SLURM_TMPDIR",
    "RETINUE_RUN_DIR",
    "RETINUE_NODE_DIR",
    "RETINUE_TOKEN_FILE",
    "RETINUE_ENDPOINTS",
)
"""What these name is hidden, whether the host says so or not."""
SHOWN_VARIABLES = ("LD_LIBRARY_PATH", "PYTHONPATH")
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc")
"""What any interpreter needs beside its own prefix."""
TMP = "/tmp"


@dataclass(frozen=True, slots=True)
class View:
    """What is hidden, and what is shown all the same."""

    hidden: tuple[str, ...]
    """Real paths, directories or files."""
    shown: tuple[str, ...]
    """Absolute paths that Python needs; those below a hidden one are bound back."""

    def find_bound_back(self) -> list[str]:
        """The shown paths that would be gone with a hidden one: those whose nearest named parent is hidden."""
        return [path for path in self.shown if self._find_parent(path) in self.hidden]

    def find_shown_below(self, path: str) -> list[str]:
        """The shown paths strictly below a path, outermost only."""
        below = [shown for shown in self.shown if is_below(shown, path)]
        return [shown for shown in below if not any(is_below(shown, other) for other in below)]

    def _find_parent(self, path: str) -> str:
        parents = [other for other in (*self.hidden, *self.shown) if is_below(path, other)]
        return max(parents, key=len, default="")


def build_view(hide: Iterable[str], environ: Mapping[str, str]) -> View:
    """Decide what is hidden and what Python needs, from the modules loaded by now and the environment.

    A path that is both is hidden: what was imported from there stays usable, what was not is gone.
    """
    named = [environ[name] for name in HIDDEN_VARIABLES if environ.get(name)]
    hidden = {os.path.realpath(path) for path in (*HIDDEN, *_list_others_on_top(), *named, *hide)} - {"/"}
    shown = {path for raw in _list_python_paths(environ) for path in (os.path.abspath(raw), os.path.realpath(raw))}
    return View(tuple(sorted(hidden)), tuple(sorted(path for path in shown - hidden - {"/"} if os.path.exists(path))))


def _list_others_on_top() -> list[str]:
    """Directories on top of the file system that no interpreter needs; links there lead to what is listed itself."""
    return [
        entry.path for entry in os.scandir("/") if entry.name not in KEPT_ON_TOP and entry.is_dir(follow_symlinks=False)
    ]


def _list_python_paths(environ: Mapping[str, str]) -> Iterable[str]:
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    yield from (path for path in sys.path if path)
    for name in SHOWN_VARIABLES:
        yield from (path for path in environ.get(name, "").split(os.pathsep) if path)
    # Editable installs are found by hooks, not by sys.path.
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isabs(file):
            yield os.path.dirname(file)


def is_below(path: str, other: str) -> bool:
    """Say whether a path lies strictly below another, by their names."""
    return path != other and path.startswith(other.rstrip("/") + "/")
