"""Compile the sandbox program: `python -m retinue.sandbox.build [TARGET]`. Needs a C compiler and nothing else.

Standard library only and no import of ours: the package's own build runs it before there is a package.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(__file__).with_name("retinue-sandbox")
"""Where an installed package or a checkout has it."""
_SOURCES = Path(__file__).with_name("runtime")
_COMPILERS = ("cc", "gcc", "clang")
_MACHINES = ("x86_64", "aarch64")
FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra"),
    *("-static", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now"),
)


class BuildFailed(Exception):
    """The program cannot be compiled; one sentence and, from the compiler, its words."""


def build_program(target: Path = PROGRAM, compiler: str | None = None) -> Path:
    """Compile the program to a path, whole or not at all.

    Errors: BuildFailed when there is no compiler, no static C library, or another architecture.
    """
    if platform.machine() not in _MACHINES:
        raise BuildFailed(f"cannot build the sandbox program: no table of system calls for {platform.machine()}")
    found = find_compiler(compiler)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        made = Path(folder) / target.name
        command = [found, *FLAGS, "-o", str(made), *sorted(str(path) for path in _SOURCES.glob("*.c"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            hint = "install libc6-dev (Debian) or glibc-static (Red Hat)" if "-lc" in done.stderr else ""
            raise BuildFailed("\n".join(filter(None, ("cannot build the sandbox program:", done.stderr[-2000:], hint))))
        os.replace(made, target)
    return target


def find_compiler(wanted: str | None = None) -> str:
    """Find a C compiler: the one asked for, `$CC`, else the usual names."""
    asked = wanted or os.environ.get("CC")
    for name in (asked,) if asked else _COMPILERS:
        if found := shutil.which(name):
            return found
    what = repr(asked) if asked else "none of " + ", ".join(_COMPILERS)
    raise BuildFailed(f"cannot build the sandbox program: no C compiler ({what} found); install gcc, or name one in CC")


def is_current(target: Path = PROGRAM) -> bool:
    """Say whether a built program is there and newer than its sources."""
    if not target.is_file():
        return False
    built = target.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= built for path in _SOURCES.iterdir())


def main(arguments: list[str]) -> int:
    """Build, and print where; exit 1 and one sentence when it cannot be done."""
    try:
        print(build_program(Path(arguments[0]) if arguments else PROGRAM))
    except (BuildFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
