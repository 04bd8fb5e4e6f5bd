"""Images for tests: a node space with `Images` on it, small trees to pack, and a mksquashfs that can be watched."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sandbox_scenes import get_program, list_descendants

from retinue.sandbox.images import Image, Images, ImageSettings
from retinue.sandbox.mounts import check_fuse
from retinue.sandbox.space import NodeSpace

WATCHED = """#!/bin/sh
case "$*" in -help*) exec {real} "$@";; esac
echo "$$ $*" >> {folder}/runs
{before}
{real} "$@" || exit
{after}
"""


@dataclass
class Node:
    """One node: a space, its images, and what was told."""

    space: NodeSpace
    images: Images
    base: Path
    lost: list[tuple[str, str]] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    def find_daemons(self) -> list[int]:
        """Pids of the squashfuse processes that run."""
        return [pid for pid in list_descendants(self.space.pid) if read_words(pid)[:1] == ["squashfuse_ll"]]

    def list_mounts(self) -> list[str]:
        """Mount points of images that the space has."""
        [inner] = Path(f"/proc/{self.space.pid}/task/{self.space.pid}/children").read_text().split()
        lines = Path(f"/proc/{inner}/mountinfo").read_text().splitlines()
        return [words[4] for words in map(str.split, lines) if words[4].startswith(f"{self.base}/mnt/")]


def read_words(pid: int) -> list[str]:
    """Name and arguments of a process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
    return [os.path.basename(words[0]), *words[1:]]


@cache
def find_program(base: Path) -> Path:
    """The sandbox program, built at most once per test process; base is where pytest keeps its files."""
    return get_program(base)


@asynccontextmanager
async def open_images(store: Path, **settings: Any) -> AsyncGenerator[Node, None]:
    """A node of its own, ended with everything on it."""
    if settings.get("unpack_to") is None and "squashfuse" not in settings:
        check_fuse()
    with tempfile.TemporaryDirectory(prefix="retinue-img-") as folder:
        base = Path(folder) / "base"
        base.mkdir(mode=0o700)
        space = await NodeSpace.start(base, find_program(store.parents[1]))
        lost: list[tuple[str, str]] = []
        idle: list[str] = []
        try:
            told = ImageSettings(base, store, Path(folder) / "logs", **settings)
            images = await Images.open(space, told, lambda *words: lost.append(words), idle.append)
            yield Node(space, images, base, lost, idle)
            await images.close()
        finally:
            await space.close()


def make_tree(root: Path, note: str = "a file\n") -> Path:
    """A small directory with something of every kind."""
    (root / "deep" / "er").mkdir(parents=True)
    (root / "file").write_text(note)
    (root / "deep" / "er" / "leaf").write_text("leaf\n" * 1000)
    (root / "link").symlink_to("/etc/passwd")
    (root / "loop").symlink_to("loop")
    (root / "deep" / "up").symlink_to("../..")
    (root / "closed").write_text("of its owner\n")
    (root / "closed").chmod(0)
    os.mkfifo(root / "fifo")
    return root


def pack(source: Path, target: Path, *options: str) -> Path:
    """Make a squashfs file."""
    words = ["mksquashfs", str(source), str(target), "-noappend", "-quiet", "-no-progress", "-all-root", *options]
    subprocess.run(words, check=True, capture_output=True)
    return target


def watch_packing(
    monkeypatch: pytest.MonkeyPatch, folder: Path, before: str = "", after: str = ""
) -> Callable[[], int]:
    """Put a mksquashfs into PATH that counts its runs, and does something more; gives the count."""
    real = shutil.which("mksquashfs")
    assert real, "cannot here: no mksquashfs (package squashfs-tools)"
    folder.mkdir(exist_ok=True)
    script = folder / "mksquashfs"
    script.write_text(WATCHED.format(real=real, folder=folder, before=before, after=after))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return lambda: len((folder / "runs").read_text().splitlines()) if (folder / "runs").exists() else 0


def list_store(store: Path) -> list[str]:
    """All files of a store, below its two levels of directories."""
    return sorted(path.name for path in store.rglob("*") if path.is_file())


async def open_inside(node: Node, image: Image) -> int:
    """Open the root of an image through the space; the caller's to close."""
    base = await node.space.open_base()
    try:
        return os.open(image.path.relative_to(node.base), os.O_RDONLY | os.O_DIRECTORY, dir_fd=base)
    finally:
        os.close(base)


async def read_inside(node: Node, image: Image, name: str) -> str:
    """Read a file of an image through the space."""
    root = await open_inside(node, image)
    try:
        fd = os.open(name, os.O_RDONLY, dir_fd=root)
        try:
            return os.read(fd, 1 << 20).decode()
        finally:
            os.close(fd)
    finally:
        os.close(root)
