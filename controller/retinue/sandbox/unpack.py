"""One image unpacked to the node's own disk, where images cannot be mounted: slow to make, as fast to use.

The machine's unsquashfs runs as the plain user, outside the node space: root of the space would try to give files to
users that do not exist there, and then leave out their modes.
"""

import asyncio
import contextlib
import os
import re
import shutil
from pathlib import Path

from retinue.sandbox.image_errors import ImageFailed, ImageRefused, Reason
from retinue.sandbox.link import LinkLost, Refused
from retinue.sandbox.space import NodeSpace
from retinue.sandbox.store import Opened
from retinue.sandbox.tools import find_program, run_tool

_HARMLESS = re.compile(r"character device|block device|xattr")
"""What no sandbox has anyway: device nodes and extended attributes."""
_FULL = ("No space left on device", "Disk quota exceeded")


class Unpacked:
    """Made by `open`."""

    def __init__(self, space: NodeSpace, path: Path) -> None:
        self._space = space
        self.path = path

    @classmethod
    async def open(cls, space: NodeSpace, opened: Opened, path: Path) -> "Unpacked":
        """Unpack an image to `path`, which does not exist.

        Errors: ImageRefused: it is damaged; NodeRefused: no unsquashfs; ImageFailed: the disk is full. Nothing is left.
        """
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unpacked = cls(space, path)
        try:
            code, text = await _run_unsquashfs(opened, path)
            check_end(opened.name, code, text, path)
        except (ImageRefused, ImageFailed, asyncio.CancelledError):
            await unpacked.close()
            raise
        return unpacked

    async def watch(self) -> str:
        """Never ends by itself."""
        await asyncio.get_running_loop().create_future()
        return ""

    async def close(self) -> None:
        """Remove the directory. By root of the space, whom a directory without permissions does not stop."""
        with contextlib.suppress(Refused, LinkLost):
            await run_tool(self._space, [find_program("rm"), "-rf", "--", str(self.path)])


async def _run_unsquashfs(opened: Opened, path: Path) -> tuple[int, str]:
    words = [find_program("unsquashfs"), "-no-progress", "-no-xattrs", "-offset", str(opened.offset_bytes)]
    words += ["-d", str(path), "/proc/self/fd/0"]
    setpriv = shutil.which("setpriv")
    if setpriv:
        words = [setpriv, "--pdeathsig", "KILL", *words]
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=opened.fd,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={"LC_ALL": "C", "PATH": os.defpath},
    )
    assert process.stderr is not None
    try:
        text = (await process.stderr.read()).decode(errors="replace")
        return await process.wait(), text
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def check_end(name: str, code: int, text: str, path: Path) -> None:
    """Refuse an end of unsquashfs that lost more than what no sandbox has. Errors: ImageRefused, ImageFailed."""
    complaints = [line for line in text.splitlines() if line.strip() and not _HARMLESS.search(line)]
    if code == 0 or (code == 2 and not complaints):
        return
    cause = " ".join(complaints)[:300]
    if any(word in text for word in _FULL):
        raise ImageFailed(f"cannot unpack image {name!r} to {str(path.parent)!r}: the disk is full; free some space")
    if code < 0:
        raise ImageFailed(f"cannot unpack image {name!r}: unsquashfs was ended by signal {-code}")
    raise ImageRefused(Reason.DAMAGED, f"cannot unpack image {name!r}: {cause}; copy or build it again")
