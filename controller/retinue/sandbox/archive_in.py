"""Unpacks a tar stream below a directory of a sandbox, piece by piece as it comes, and nowhere else.

An entry that would lead out of the directory ends the upload; what was unpacked until then stays. Devices and FIFOs
are counted and left out; owners, set-id bits and attributes are not taken over.
"""

import os
from collections.abc import Generator

from retinue.sandbox import openat
from retinue.sandbox.archive_target import Target
from retinue.sandbox.file_acts import DIRECTORY_MODE, translating, write_all
from retinue.sandbox.file_errors import FileRefused, Reason, refuse, show_path, translate
from retinue.sandbox.file_lanes import Stop
from retinue.sandbox.file_records import NAMES_MAX, TransferLimits, Uploaded
from retinue.sandbox.tar_header import BLOCK_BYTES, BadTar
from retinue.sandbox.tar_read import Kind, Member, TarStream

Waiting = Generator[None, None, None]
_AFTER_MAX_BYTES = 16 * 2**20
"""Of anything behind the end marker."""
_FILE_MODE = 0o777


class Unpacking:
    """One upload. Whoever made it closes it; feed and close are one thread's at a time."""

    def __init__(self, root_fd: int, path: bytes, limits: TransferLimits) -> None:
        """root_fd is its own from now on."""
        self._root_fd = root_fd
        self._path = path
        self._limits = limits
        self._target: Target | None = None
        self._stop = Stop()
        self._tar = TarStream()
        self._work = self._unpack()
        self._counts = dict.fromkeys(("files", "directories", "links", "bytes", "skipped"), 0)
        self._skipped_names: list[str] = []
        self._entry_count = 0

    def feed(self, data: bytes, is_over: bool, stop: Stop) -> None:
        """Unpack what came; is_over: and no more comes. Errors: FileRefused, FileFailed."""
        self._stop = stop
        self._tar.feed(data, is_over)
        try:
            next(self._work, None)
        except BadTar as error:
            raise refuse(Reason.BAD_ARCHIVE, "unpack into", self._path, str(error)) from None

    def build_result(self) -> Uploaded:
        """Say what was unpacked."""
        return Uploaded(**self._counts, skipped_names=self._skipped_names)

    def close(self) -> None:
        """Let go of all descriptors."""
        self._work.close()
        if self._target is not None:
            self._target.close()
            self._target = None
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    # --- the stream -----------------------------------------------------------------------

    def _unpack(self) -> Waiting:
        with translating("unpack into", self._path):
            self._target = target = Target(self._root_fd, self._path)
        while (member := (yield from self._tar.read_member())) is not None:
            self._stop.check()
            self._check(member)
            try:
                yield from self._place(target, member)
            except OSError as error:
                raise translate("unpack", member.name, error) from None
        yield from self._drain()
        with translating("unpack into", self._path):
            target.finish_directories(self._stop)

    def _check(self, member: Member) -> None:
        self._entry_count += 1
        if self._entry_count > self._limits.entries:
            raise refuse(Reason.TOO_MANY, "unpack into", self._path, f"more than {self._limits.entries} entries")
        self._counts["bytes"] += max(member.size, member.data_bytes)
        if self._counts["bytes"] > self._limits.bytes:
            why = f"more than {self._limits.bytes} bytes with {show_path(member.name)}"
            raise refuse(Reason.TOO_LARGE, "unpack into", self._path, why)

    def _drain(self) -> Waiting:
        """Pass over what fills the last record, up to the end of the stream."""
        after_bytes = 0
        while True:
            after_bytes += len(self._tar.take(_AFTER_MAX_BYTES))
            if after_bytes > _AFTER_MAX_BYTES:
                raise BadTar(f"more than {_AFTER_MAX_BYTES} bytes after its end marker")
            if self._tar.is_over:
                return
            yield

    def _place(self, target: Target, member: Member) -> Waiting:
        path = clean_name(member.name)
        if not path and member.kind is not Kind.DIRECTORY:
            raise BadTar(f"an entry without a name: {show_path(member.name)}")
        match member.kind:
            case Kind.FILE:
                yield from self._place_file(target, path, member)
                self._counts["files"] += 1
            case Kind.DIRECTORY:
                if path:
                    target.make_directory(path, member.mode & DIRECTORY_MODE, member.mtime_ns, self._stop)
                self._counts["directories"] += 1
            case Kind.SYMLINK | Kind.HARDLINK:
                self._place_link(target, path, member)
                self._counts["links"] += 1
            case _:
                self._skip(member.name)
        if member.kind is not Kind.FILE:
            yield from self._tar.skip(member.data_bytes)
        yield from self._tar.skip(-member.data_bytes % BLOCK_BYTES)

    def _place_file(self, target: Target, path: bytes, member: Member) -> Waiting:
        fd = target.make_file(path)
        try:
            yield from self._write(fd, member)
            os.fchmod(fd, member.mode & _FILE_MODE)
            os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))
        except (OSError, BadTar, FileRefused, GeneratorExit):
            # Half a file is worse than none.
            target.remove_file(path)
            raise
        finally:
            os.close(fd)

    def _write(self, fd: int, member: Member) -> Waiting:
        for offset, length in member.pieces or [(0, member.data_bytes)]:
            os.lseek(fd, offset, os.SEEK_SET)
            left = length
            while left:
                piece = self._tar.take(left)
                if not piece:
                    yield from self._tar.wait()
                    continue
                write_all(fd, piece, self._stop)
                left -= len(piece)
        if member.pieces:
            os.ftruncate(fd, member.size)

    def _place_link(self, target: Target, path: bytes, member: Member) -> None:
        if not member.link or b"\0" in member.link:
            raise BadTar(f"a link that leads nowhere: {show_path(member.name)}")
        if member.kind is Kind.HARDLINK:
            target.make_hard_link(path, clean_name(member.link))
        else:
            target.make_symlink(path, member.link, member.mtime_ns)

    def _skip(self, name: bytes) -> None:
        self._counts["skipped"] += 1
        if len(self._skipped_names) < NAMES_MAX:
            self._skipped_names.append(name.decode(errors="backslashreplace"))


def clean_name(name: bytes) -> bytes:
    """Make a path below the target of an entry's name; empty: the target itself.

    Errors: FileRefused OUTSIDE for "..", wherever it would lead; BadTar.
    """
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise refuse(Reason.OUTSIDE, "unpack", name, 'it has ".." in it')
    if b"\0" in name:
        raise BadTar(f"a name with a NUL: {show_path(name)}")
    path = b"/".join(parts)
    if len(path) > openat.PATH_MAX_BYTES:
        raise BadTar(f"a path of {len(path)} bytes; {openat.PATH_MAX_BYTES} is the most: {show_path(name)}")
    return path
