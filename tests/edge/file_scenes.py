"""A root to use files in, with something beside it that must never be touched; tar archives made by other programs."""

import asyncio
import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from retinue.sandbox import files
from retinue.sandbox.file_errors import FileRefused, Reason
from retinue.sandbox.file_records import Downloaded, TransferLimits, Uploaded

SECRET = b"nobody in the sandbox may see this"


class Ground:
    """`root` is the sandbox's "/"; `outside` stands for the host."""

    def __init__(self, base: Path) -> None:
        self.root = base / "root"
        self.outside = base / "outside"
        for folder in (self.root, self.outside, self.outside / "deep"):
            folder.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        (self.outside / "deep" / "secret").write_bytes(SECRET)
        self.fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY)
        self._before = self._show_outside()

    def close(self) -> None:
        os.close(self.fd)
        # Trees of these tests may be deeper than Python can walk, and closed to their owner.
        subprocess.run(["chmod", "-R", "u+rwX", self.root], check=True)
        subprocess.run(["rm", "-rf", self.root], check=True)

    def is_outside_untouched(self) -> bool:
        return self._show_outside() == self._before

    def _show_outside(self) -> list[tuple[str, int, int, bytes]]:
        shown = []
        for path in sorted([self.outside, *self.outside.rglob("*")]):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            shown.append((str(path), status.st_mode, status.st_nlink, content))
        return shown

    async def upload(self, data: bytes, path: str = "/in", **limits: Any) -> Uploaded:
        return await upload(self.fd, data, path, **limits)

    async def download(self, path: str = "/", **limits: Any) -> tuple[bytes, Downloaded]:
        return await download(self.fd, path, **limits)


async def upload(root_fd: int, data: bytes, path: str, piece_bytes: int = 65536, **limits: Any) -> Uploaded:
    """Upload what is given, in pieces of one length."""
    at = 0

    async def receive() -> bytes:
        nonlocal at
        at += piece_bytes
        return data[at - piece_bytes : at]

    return await files.upload(root_fd, path, receive, TransferLimits(**limits))


async def download(root_fd: int, path: str, **limits: Any) -> tuple[bytes, Downloaded]:
    """Download into memory."""
    pieces: list[bytes] = []

    async def send(piece: bytes) -> None:
        pieces.append(piece)

    result = await files.download(root_fd, path, send, TransferLimits(**limits))
    return b"".join(pieces), result


async def find_reason(call: Any) -> Reason:
    """Why a call is refused."""
    try:
        await call
    except FileRefused as refused:
        return refused.reason
    raise AssertionError("it was not refused")


async def list_refusals(call: Any) -> list[Reason]:
    """Why a call is refused; empty: it is not."""
    try:
        await call
    except FileRefused as refused:
        return [refused.reason]
    return []


async def settle(count: int) -> None:
    """Wait until so many descriptors are open: some are closed in a thread."""
    async with asyncio.timeout(10):
        while count_fds() != count:  # noqa: ASYNC110  the kernel sets no Event
            await asyncio.sleep(0.01)


def make_sparse(path: Path, size: int, *pieces: tuple[int, bytes]) -> Path:
    """Make a file of holes with a few pieces in it."""
    with open(path, "wb") as file:
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
        file.truncate(size)
    return path


def run_tar(*words: str | Path, data: bytes = b"") -> bytes:
    """Run GNU tar."""
    return subprocess.run(["tar", *words], input=data, capture_output=True, check=True).stdout


def is_same(first: Path, second: Path) -> bool:
    """Whether two trees have the same names and contents, links as links."""
    return subprocess.run(["diff", "-r", "--no-dereference", first, second], check=False).returncode == 0


def make_tar(*entries: "tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]", form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive with exactly these entries, by Python's tarfile."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as tar:
        for entry in entries:
            member, data = entry if isinstance(entry, tuple) else (entry, b"")
            member.size = len(data) or member.size
            tar.addfile(member, io.BytesIO(data) if data else None)
    return buffer.getvalue()


def file(name: str, data: bytes = b"", mode: int = 0o644) -> "tuple[tarfile.TarInfo, bytes]":
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = mode, 1_600_000_000
    return member, data


def entry(name: str, kind: bytes, link: str = "", mode: int = 0o755) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode, member.mtime = kind, link, mode, 1_600_000_000
    return member


def directory(name: str, mode: int = 0o755) -> tarfile.TarInfo:
    return entry(name, tarfile.DIRTYPE, mode=mode)


def symlink(name: str, link: str) -> tarfile.TarInfo:
    return entry(name, tarfile.SYMTYPE, link)


def hardlink(name: str, link: str) -> tarfile.TarInfo:
    return entry(name, tarfile.LNKTYPE, link)


def read_tar(data: bytes) -> dict[str, tarfile.TarInfo]:
    """Names and entries, by Python's tarfile."""
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        return {member.name: member for member in tar.getmembers()}


def count_fds() -> int:
    return len(os.listdir("/proc/self/fd"))
