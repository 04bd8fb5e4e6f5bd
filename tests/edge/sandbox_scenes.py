"""Sandboxes for tests: the program, built from what is in the tree; an image, made from what this machine has."""

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from retinue.sandbox.box import Box
from retinue.sandbox.build import PROGRAM, build_program, is_current
from retinue.sandbox.config import BoxConfig
from retinue.sandbox.output import Ran, run
from retinue.sandbox.space import NodeSpace
from retinue.sandbox.wire import Flag
from retinue.sandbox.zygote import Zygote

PROBES = Path(__file__).with_name("sandbox_probe.c")
TOOLS = "sh cat ls true false sleep id mkdir rm rmdir dd mv cp chown chmod env head wc ln tar kill touch mkfifo stat"
NOT_NEEDED = shutil.ignore_patterns("test", "tests", "idlelib", "tkinter", "ensurepip", "__pycache__", "*-packages")


def get_program(folder: Path) -> Path:
    """The program of this checkout: the one that is built, if it is newer than its sources, else a fresh one."""
    return PROGRAM if is_current() else build_program(folder / "retinue-sandbox")


def find_libraries(program: str) -> set[str]:
    """What a program needs to run, as ldd says."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}


def copy_into(root: Path, path: str, name: str | None = None) -> None:
    """Copy a file of this machine to its own path, or another, in the image."""
    target = root / (name or path).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(path, target)


def make_image(root: Path) -> Path:
    """Make an image: a shell, a few tools, this Python without its tests, our probe; plain files and directories."""
    python = os.path.realpath(sys.executable)
    files = set(find_libraries(python))
    for tool in TOOLS.split():
        found = shutil.which(tool)
        assert found, f"cannot here: no {tool} to make an image from"
        copy_into(root, os.path.realpath(found), f"/bin/{tool}")
        files |= find_libraries(os.path.realpath(found))
    stdlib = sysconfig.get_path("stdlib")
    shutil.copytree(stdlib, root / stdlib.lstrip("/"), ignore=NOT_NEEDED, symlinks=True)
    for module in (Path(stdlib) / "lib-dynload").glob("*.so"):
        files |= find_libraries(str(module))
    copy_into(root, python)
    (root / "bin" / "python3").symlink_to(python)
    for path in files:
        copy_into(root, path)
    subprocess.run(["cc", "-O1", "-static", "-o", str(root / "bin" / "probe"), str(PROBES)], check=True)
    for name in ("tmp", "proc", "dev", "root", "etc", "image/deep"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "image" / "file").write_text("of the image\n")
    (root / "image" / "deep" / "leaf").write_text("leaf\n")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/root:/bin/sh\n")
    return root


@cache
def prepare(base: Path) -> tuple[Path, Path]:
    """Program and image, made once per test process; base is where pytest keeps this session's files."""
    return get_program(base), make_image(base / "sandbox-image")


class Scene:
    """A node space with one image, and what was made in it."""

    def __init__(self, space: NodeSpace, lowers: Sequence[Path], uppers: Path | None) -> None:
        self.space = space
        self.lowers = lowers
        self._uppers = uppers
        self._zygotes: dict[Flag, Zygote] = {}

    @property
    def zygote(self) -> Zygote:
        """The usual one."""
        return self._zygotes[BoxConfig().filter_flags]

    async def find_zygote(self, config: BoxConfig) -> Zygote:
        """The one that can make this; started the first time."""
        flags = config.filter_flags
        if flags not in self._zygotes:
            self._zygotes[flags] = await self.space.start_zygote(self.lowers, self._uppers, flags)
        return self._zygotes[flags]

    async def create(self, **limits: Any) -> Box:
        config = BoxConfig(**limits)
        return await (await self.find_zygote(config)).create(config)


@asynccontextmanager
async def open_scene(program: Path, *lowers: Path, uppers: Path | None = None) -> AsyncGenerator[Scene, None]:
    """A space and a zygote, ended with everything in them."""
    with tempfile.TemporaryDirectory(prefix="retinue-sbx-") as folder:
        space = await NodeSpace.start(Path(folder), program)
        try:
            scene = Scene(space, lowers, uppers)
            await scene.find_zygote(BoxConfig())
            yield scene
        finally:
            await space.close()


async def shell(box: Box, script: str, **options: Any) -> Ran:
    """Run a script in a sandbox."""
    return await run(box, ["/bin/sh", "-c", script], **options)


async def shell_text(box: Box, script: str, **options: Any) -> str:
    """What a script that succeeds prints, both streams."""
    ran = await shell(box, script, **options)
    text = (ran.stdout + ran.stderr).decode()
    assert ran.ended.exit_code == 0, f"{script}: {ran.ended} {text}"
    return text.strip()


async def python(box: Box, code: str, **options: Any) -> str:
    """What a Python program that succeeds prints."""
    ran = await run(box, ["python3", "-S", "-E", "-c", code], **options)
    assert ran.ended.exit_code == 0, f"{ran.ended} {ran.stderr.decode()}"
    return ran.stdout.decode().strip()


async def probe(box: Box, *words: str, **options: Any) -> str:
    """What our own probe (sandbox_probe.c) answers: "ok", or the name of an errno."""
    ran = await run(box, ["probe", *words], **options)
    assert ran.ended.exit_code == 0, f"{words}: {ran.ended} {ran.stdout!r} {ran.stderr!r}"
    return ran.stdout.decode().strip()


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait for a condition with a deadline."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  the kernel sets no Event
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process of ours runs; one that ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def list_descendants(pid: int) -> set[int]:
    """All pids below one."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return set()
    return {int(child) for child in children} | {far for child in children for far in list_descendants(int(child))}
