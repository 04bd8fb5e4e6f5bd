"""Who packs an image into the store, among all nodes: one file, made exclusively, kept fresh by its time stamp.

Never flock: a shared file system has no kernel that lets go of the lock of a dead node. Two who pack the same at once,
which a process that was stopped for a minute can cause, cost time and nothing else: each writes a file of its own and
renames it whole.
"""

import contextlib
import errno
import os
import secrets
import time
from pathlib import Path

from retinue.terms.record import DecodeError, Record, from_json, to_json

STALE_S = 60.0
"""An owner that shows no life for so long, by the reader's own clock, is dead."""
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


class Packer(Record, frozen=True):
    """Content of the lock file."""

    host: str
    pid: int
    pid_start: int
    """Start time in clock ticks since boot; a pid that was used again has another."""
    where: str
    """Boot and pid namespace: only there does the pid mean this process."""
    nonce: str
    """Different each time; in the name of the file that is being written."""


class StoreLock:
    """One try to be the one who packs; the methods block as the file system does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.nonce = secrets.token_hex(8)
        self.holder = ""
        """Who had it at the last look, for people."""
        self._seen: tuple[str, int] | None = None
        self._since_s = 0.0

    def try_take(self) -> str | None:
        """Try to own the lock, over a dead owner too.

        Shape:  None: somebody else has it. Else the nonce of the dead owner whose unfinished file is now to be
                removed, or "".
        Errors: OSError as the file system says.
        """
        if self._create():
            return ""
        found = _look(self._path)
        if found is None:
            return "" if self._create() else None
        owner, stamp = found
        self.holder = f"{owner.host} (pid {owner.pid})"
        if self._seen != (owner.nonce, stamp):
            self._seen, self._since_s = (owner.nonce, stamp), time.monotonic()
        if not _is_gone(owner) and time.monotonic() - self._since_s < STALE_S:
            return None
        if not self._set_aside(owner.nonce) or not self._create():
            return None
        return owner.nonce

    def refresh(self) -> None:
        """Show life."""
        os.utime(self._path)

    def release(self) -> None:
        """Give it back; nothing happens when it is somebody else's by now."""
        found = _look(self._path)
        if found is not None and found[0].nonce == self.nonce:
            self._set_aside(self.nonce)

    def _set_aside(self, nonce: str) -> bool:
        """Remove the lock file if it is still that owner's; rename(2) picks one of many who try."""
        aside = self._path.with_name(f"{self._path.name}.{self.nonce}")
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return True
        moved = _look(aside)
        is_same = moved is not None and moved[0].nonce == nonce
        if not is_same:
            # Somebody else took it over between the look and the rename: give it back.
            with contextlib.suppress(OSError):
                os.link(aside, self._path)
        aside.unlink(missing_ok=True)
        return is_same

    def _create(self) -> bool:
        """Make the lock file with its whole content, or not at all; False when there is one."""
        start = _read_pid_start(os.getpid()) or 0
        own = Packer(os.uname().nodename, os.getpid(), start, _read_where(), self.nonce)
        aside = self._path.with_name(f"{self._path.name}.{self.nonce}")
        _write_new(aside, own)
        try:
            os.link(aside, self._path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return _create_in_place(self._path, own)
        finally:
            aside.unlink(missing_ok=True)
        return True


def _create_in_place(path: Path, own: Packer) -> bool:
    try:
        _write_new(path, own)
    except FileExistsError:
        return False
    return True


def _look(path: Path) -> tuple[Packer, int] | None:
    try:
        # Opening, not stat: NFS may serve attributes from a cache, but asks the server on open.
        with open(path, "rb") as stream:
            stamp = os.fstat(stream.fileno()).st_mtime_ns
            content = stream.read(4096)
    except FileNotFoundError:
        return None
    try:
        return from_json(content, Packer), stamp
    except DecodeError:
        return Packer("?", 0, 0, "?", "?"), stamp


def _is_gone(owner: Packer) -> bool:
    """Whether the owner's process is known to have ended; one that cannot be seen from here is not."""
    if owner.host != os.uname().nodename or owner.where != _read_where():
        return False
    return _read_pid_start(owner.pid) != owner.pid_start


def _read_pid_start(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command name may hold spaces and brackets; fields are counted from the last one. proc(5).
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _read_where() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _write_new(path: Path, own: Packer) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as stream:
        stream.write(to_json(own))
