"""How setuptools builds the sandbox program: into a wheel, or in place for an editable install (see pyproject.toml)."""

import runpy
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_BUILD = runpy.run_path(str(Path(__file__).with_name("build.py")))


class BuildProgram(build_py):
    """Compiles after the Python files are in place."""

    def run(self) -> None:
        super().run()
        target: Path = _BUILD["PROGRAM"]
        if not self.editable_mode:
            target = Path(self.build_lib) / "retinue" / "sandbox" / target.name
        try:
            _BUILD["build_program"](target)
        except _BUILD["BuildFailed"] as error:
            raise SystemExit(str(error)) from None


class PlatformWheel(bdist_wheel):
    """Any Python 3, but one architecture: the program is static and no extension module."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])
