"""Packs a directory into a squashfs file, by the machine's mksquashfs, in the node space.

All or nothing: what cannot be read is an error, not an empty file. The caller owns the file that is written.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from retinue.sandbox.image_errors import ImageFailed, ImageRefused, Reason
from retinue.sandbox.space import NodeSpace
from retinue.sandbox.tools import find_program, run_tool

_PROCESSORS_MAX = 8
_MEMORY = "512M"
"""mksquashfs takes a quarter of the node's memory when it is not told."""
_PROGRESS = re.compile(r"(\d+)/(\d+)")
_LOST = ("creating empty file", "skipping...", "Failed to read")
"""What mksquashfs says of what it leaves out; before 4.5 it then goes on and exits 0."""
_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


class PackTool:
    """The machine's mksquashfs, and what it can do."""

    def __init__(self, program: str, help_text: str) -> None:
        self._program = program
        self._help = help_text

    @classmethod
    async def find(cls, space: NodeSpace) -> "PackTool":
        """Ask mksquashfs what it offers. Errors: NodeRefused: it is not installed."""
        program = find_program("mksquashfs")
        texts: list[str] = []
        # Since 4.7 -help is short; before, -help-all is an error that prints everything.
        for word in ("-help", "-help-all"):
            await run_tool(space, [program, word], texts.append)
        return cls(program, "".join(texts))

    def build_argv(self, source: Path, target: Path) -> list[str]:
        """Build the command line; every option that came late is used where it is offered."""
        words = [self._program, str(source), str(target), "-noappend", "-all-root", "-no-xattrs", "-no-recovery"]
        if self._offers("zstd"):
            words += ["-comp", "zstd", "-Xcompression-level", "6"]
        for option, *values in (
            ("-root-mode", "755"),
            ("-exit-on-error",),
            ("-mem", _MEMORY),
            ("-processors", str(min(len(os.sched_getaffinity(0)), _PROCESSORS_MAX))),
            ("-quiet",),
            ("-progress",),
        ):
            if self._offers(option):
                words += [option, *values]
        return words

    def _offers(self, word: str) -> bool:
        return re.search(rf"(?m)^\s*{re.escape(word)}\b", self._help) is not None


async def pack_directory(
    space: NodeSpace, tool: PackTool, name: str, source: Path, target: Path, on_progress: Callable[[int, int], None]
) -> None:
    """Write the directory `source` to `target`, which exists and keeps its mode.

    Shape:  on_progress gets blocks done and blocks in all, a few times a second.
    Errors: ImageRefused when not all of it can be read; ImageFailed when the disk is full or mksquashfs fails.
    """
    lost: list[str] = []

    def read_text(text: str) -> None:
        lost.extend(line for line in text.splitlines() if any(word in line for word in _LOST))
        found = _PROGRESS.findall(text)
        if found:
            on_progress(int(found[-1][0]), int(found[-1][1]))

    code, tail = await run_tool(space, tool.build_argv(source, target), read_text)
    if lost:
        cause = lost[0].strip()
        raise ImageRefused(
            Reason.UNREADABLE, f"cannot pack {name!r}: {cause}; make it readable, or take it out of the directory"
        )
    if code == 0:
        return
    words = " ".join(tail.split())[-300:]
    if any(word in tail for word in _FULL):
        raise ImageFailed(f"cannot pack {name!r}: the store {str(target.parent)!r} is full ({words}); free some space")
    raise ImageFailed(f"cannot pack {name!r}: mksquashfs ended with {code}: {words}")
