"""Files of a sandbox. Paths begin at its own `/`, and nothing follows a link out of it."""

import asyncio
import io
import os
import tarfile
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

from retinue.client.answer import Answer
from retinue.client.asking import Line
from retinue.client.http import FileBody
from retinue.client.sandbox_asking import CALL_S, Call, Reply, ask, ask_reading
from retinue.client.sandbox_errors import SandboxNoFile, SandboxRefused
from retinue.client.sandbox_lanes import EXEC, SHORT
from retinue.client.sandbox_records import Entry, Uploaded
from retinue.terms.record import Record

ARCHIVE_S = 3600.0
"""A whole archive; the service gives up by itself on one that stands still."""
READ_BYTES = 32 * 1024 * 1024
"""What the service gives at once."""
IN_MEMORY_BYTES = 4 * 1024 * 1024
OCTETS = {"Content-Type": "application/octet-stream"}
TAR = {"Content-Type": "application/x-tar"}


class _Listed(Record, frozen=True):
    entries: tuple[Entry, ...] = ()


class _Removed(Record, frozen=True):
    removed: bool | int = True


class Files:
    """The files of one sandbox."""

    def __init__(self, line: Line, sandbox: str) -> None:
        self._line = line
        self._sandbox = sandbox

    async def read(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """Return a file's bytes: all of them, or at most `limit` from an offset on.

        Errors: SandboxNoFile; SandboxRefused for a directory, a FIFO, and without a limit for a file of more than
                32 MiB: a policy can make one of any size, and it would have to fit here.
        """
        whole, left = bytearray(), READ_BYTES + 1 if limit is None else limit
        while left > 0:
            words: dict[str, str | int] = {"path": path, "offset": offset, "limit": min(left, READ_BYTES)}
            piece = (await self._ask("GET", "file", words, f"read {path!r}")).body
            if not piece:
                break
            whole += piece
            offset, left = offset + len(piece), left - len(piece)
        if limit is None and len(whole) > READ_BYTES:
            message = f"cannot read {path!r} of sandbox {self._sandbox}: more than {READ_BYTES} bytes; give a limit"
            raise SandboxRefused(message, "sandbox_too_large", 413)
        return bytes(whole)

    async def write(self, path: str, data: bytes | str, mode: int | None = None, append: bool = False) -> None:
        """Write a file; directories on the way are made.

        Errors: SandboxRefused; SandboxUnsure when the connection was lost while appending.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        words: dict[str, str | int] = {"path": path}
        words |= ({"mode": f"{mode:04o}"} if mode is not None else {}) | ({"append": 1} if append else {})
        await self._ask("PUT", "file", words, f"write {path!r}", raw, may_repeat=not append)

    async def list(self, path: str = "/") -> tuple[Entry, ...]:
        """List a directory."""
        return (await self._ask("GET", "files", {"path": path}, f"list {path!r}")).parse(_Listed).entries

    async def stat(self, path: str) -> Entry:
        """Describe one entry; a link is not followed."""
        return (await self._ask("GET", "stat", {"path": path}, f"describe {path!r}")).parse(Entry)

    async def exists(self, path: str) -> bool:
        """Tell whether there is anything of that name."""
        try:
            await self.stat(path)
        except SandboxNoFile:
            return False
        return True

    async def remove(self, path: str, recursive: bool = False) -> bool:
        """Remove a file, or a directory with all that is in it; False: there was none."""
        words: dict[str, str | int] = {"path": path} | ({"recursive": 1} if recursive else {})
        try:
            reply = await self._ask("DELETE", "file", words, f"remove {path!r}")
            return bool(reply.parse(_Removed).removed)
        except SandboxNoFile:
            return False

    async def make_directory(self, path: str) -> None:
        """Make a directory and those on the way; one that is there is left as it is."""
        await self._ask("POST", "directory", {"path": path}, f"make directory {path!r}", b"{}")

    async def upload(
        self, source: str | os.PathLike[str] | bytes, path: str = "/", deadline_s: float = ARCHIVE_S
    ) -> Uploaded:
        """Unpack files into a directory of the sandbox.

        Shape:  `source` is a directory of this machine (what is in it), a file of this machine (under its own name), or
                the bytes of a tar archive.
        Errors: OSError when the source cannot be read; SandboxRefused for an archive that cannot be unpacked.
        """
        if isinstance(source, bytes | bytearray | memoryview):
            return await self._send(FileBody(io.BytesIO(source), len(source)), path, deadline_s)
        packed = await asyncio.to_thread(_pack, Path(source))
        try:
            return await self._send(FileBody(packed, packed.seek(0, os.SEEK_END)), path, deadline_s)
        finally:
            packed.close()

    async def download(self, path: str, to: str | os.PathLike[str], deadline_s: float = ARCHIVE_S) -> int:
        """Write a directory of the sandbox to a tar archive of this machine; returns its size.

        Unpack it with care: a policy chose the names and links in it (`tarfile`'s `filter="data"`).
        Errors: OSError when it cannot be written.
        """
        file: BinaryIO = await asyncio.to_thread(open, to, "wb")
        with file:

            async def take(answer: Answer) -> int:
                await asyncio.to_thread(_empty, file)
                while piece := await answer.read_piece():
                    await asyncio.to_thread(file.write, piece)
                return file.tell()

            words = {"path": path}
            call = self._build("GET", "archive", words, f"download {path!r}", deadline_s=deadline_s)
            return await ask_reading(self._line, call, take)

    async def _send(self, body: FileBody, path: str, deadline_s: float) -> Uploaded:
        call = self._build("PUT", "archive", {"path": path}, f"upload to {path!r}", body, TAR, deadline_s)
        return (await ask(self._line, call)).parse(Uploaded)

    async def _ask(
        self, method: str, page: str, words: dict[str, str | int], what: str, body: bytes = b"", may_repeat: bool = True
    ) -> Reply:
        headers = OCTETS if method == "PUT" else None
        return await ask(self._line, self._build(method, page, words, what, body, headers, CALL_S, may_repeat))

    def _build(
        self,
        method: str,
        page: str,
        words: "dict[str, str | int] | dict[str, str]",
        what: str,
        body: bytes | FileBody = b"",
        headers: dict[str, str] | None = None,
        deadline_s: float = CALL_S,
        may_repeat: bool = True,
    ) -> Call:
        return Call(
            method,
            f"/v1/sandboxes/{self._sandbox}/{page}?{urlencode(words, errors='surrogateescape')}",
            f"{what} in sandbox {self._sandbox}",
            body,
            headers or {},
            deadline_s,
            may_repeat,
            EXEC if page == "archive" else SHORT,
            self._sandbox,
        )


def _pack(source: Path) -> BinaryIO:
    """Pack a file, or what is in a directory; the owners of this machine stay here."""
    packed = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115 (the caller closes it)
    with ExitStack() as undo:
        undo.callback(packed.close)
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            entries = sorted(source.iterdir()) if source.is_dir() else [source]
            for entry in entries:
                tar.add(entry, arcname=entry.name, filter=_anonymize)
        undo.pop_all()
    return packed  # type: ignore[return-value]


def _anonymize(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()
