"""The sandbox program is built with a C compiler and nothing else, without a warning, for both architectures."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import retinue.sandbox
from retinue.sandbox.build import FLAGS, BuildFailed, build_program, is_current, main

SOURCES = Path(retinue.sandbox.__file__).parent / "runtime"
STRICT = ("-Werror", "-Wall", "-Wextra", "-Wshadow", "-Wpointer-arith", "-Wstrict-prototypes", "-Wmissing-prototypes")


def compile_strictly(compiler: str, target: Path) -> None:
    command = [compiler, *FLAGS, *STRICT, "-o", str(target), *map(str, sorted(SOURCES.glob("*.c")))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"cannot here: no {program}")
    return found


def test_a_built_program_is_static_and_current(tmp_path: Path) -> None:
    made = build_program(tmp_path / "deep" / "retinue-sandbox")
    assert is_current(made)
    assert subprocess.run([made], capture_output=True, text=True).returncode == 2
    assert "statically linked" in subprocess.run(["ldd", made], capture_output=True, text=True).stdout or (
        "not a dynamic" in subprocess.run(["ldd", made], capture_output=True, text=True).stderr
    )
    assert [path.name for path in made.parent.iterdir()] == ["retinue-sandbox"]
    os.utime(made, (1, 1))
    assert not is_current(made)


def test_without_a_compiler_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([str(tmp_path / "program")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no C compiler" in said
    assert "install gcc" in said
    monkeypatch.setenv("CC", "nothing-cc")
    with pytest.raises(BuildFailed, match="nothing-cc"):
        build_program(tmp_path / "program")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_leaves_the_old_program_and_its_words(tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cannot find -lc: no such file' >&2\nexit 1\n")
    broken.chmod(0o755)
    target = tmp_path / "program"
    target.write_text("old")
    with pytest.raises(BuildFailed, match=r"(?s)cannot find -lc.*libc6-dev"):
        build_program(target, str(broken))
    assert target.read_text() == "old"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_compiler_has_anything_to_say(compiler: str, tmp_path: Path) -> None:
    compile_strictly(find(compiler), tmp_path / "program")


def test_the_program_for_the_other_architecture_builds_and_prints_the_same_filters(tmp_path: Path) -> None:
    cross, emulator = find("aarch64-linux-gnu-gcc"), find("qemu-aarch64")
    compile_strictly(cross, tmp_path / "other")
    own = build_program(tmp_path / "own")
    for what in ("aarch64+net+fake", "aarch64", "x86_64", "x86_64+net+memfd"):
        there = subprocess.run([emulator, tmp_path / "other", "--filter", what], capture_output=True, check=True)
        here = subprocess.run([own, "--filter", what], capture_output=True, check=True)
        assert there.stdout == here.stdout != b""


def test_the_build_needs_nothing_of_the_package(tmp_path: Path) -> None:
    """It runs before there is one: isolated Python, no site packages, sources alone."""
    shutil.copytree(SOURCES, tmp_path / "runtime")
    shutil.copy(SOURCES.parent / "build.py", tmp_path)
    done = subprocess.run([sys.executable, "-I", "-S", tmp_path / "build.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "retinue-sandbox").is_file()
