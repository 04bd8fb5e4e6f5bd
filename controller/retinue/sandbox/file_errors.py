"""Why a file of a sandbox cannot be used: what was asked does not go, or we failed. Only the latter is `infra_failed`.

Nothing that a process in the sandbox can do to its own files leads to `FileFailed`.
"""

import errno
import os
from enum import StrEnum

from retinue.errors import PermanentError, TransientError


class Reason(StrEnum):
    """What is wrong with a call that is refused."""

    NOT_FOUND = "not_found"
    """There is nothing of that name."""
    NOT_A_DIRECTORY = "not_a_directory"
    """A part of the path that must be a directory is none."""
    IS_A_DIRECTORY = "is_a_directory"
    """A file was wanted."""
    NOT_A_FILE = "not_a_file"
    """A FIFO, socket or device: never opened from outside."""
    EXISTS = "exists"
    """Something else has the name."""
    NOT_EMPTY = "not_empty"
    """A directory with something in it."""
    DENIED = "denied"
    """The sandbox's own user may not either."""
    BAD_PATH = "bad_path"
    """No path: empty, too long, a NUL in it."""
    OUTSIDE = "outside"
    """Not on the sandbox's disk: /proc, /dev; or out of the directory that an archive is unpacked into."""
    LINK = "link"
    """A link where none is followed, or links without end."""
    BUSY = "busy"
    """A process in the sandbox holds it, or changes it faster than it can be used."""
    DISK_FULL = "disk_full"
    """The sandbox's disk has no room, for bytes or for files."""
    TOO_LARGE = "too_large"
    """More bytes than are passed on at once."""
    TOO_MANY = "too_many"
    """More entries than are passed on at once."""
    BAD_ARCHIVE = "bad_archive"
    """Not a tar file, cut short, or made to break its reader."""
    LATE = "late"
    """It was not done in the time that it had."""


class FileRefused(PermanentError):
    """The call does not go, for a reason that lies with the caller or inside the sandbox."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class FileFailed(TransientError):
    """Ours: the image's file system died, this process is out of descriptors, too many calls hang."""


_REASONS = {
    errno.ENOENT: Reason.NOT_FOUND,
    errno.ENOTDIR: Reason.NOT_A_DIRECTORY,
    errno.EISDIR: Reason.IS_A_DIRECTORY,
    errno.ENXIO: Reason.NOT_A_FILE,
    errno.EEXIST: Reason.EXISTS,
    errno.ENOTEMPTY: Reason.NOT_EMPTY,
    errno.EACCES: Reason.DENIED,
    errno.EPERM: Reason.DENIED,
    errno.EROFS: Reason.DENIED,
    errno.EINVAL: Reason.BAD_PATH,
    errno.ENAMETOOLONG: Reason.BAD_PATH,
    errno.EILSEQ: Reason.BAD_PATH,
    errno.EXDEV: Reason.OUTSIDE,
    errno.ELOOP: Reason.LINK,
    errno.EAGAIN: Reason.BUSY,
    errno.EBUSY: Reason.BUSY,
    errno.ETXTBSY: Reason.BUSY,
    errno.EMLINK: Reason.TOO_MANY,
    errno.ENOSPC: Reason.DISK_FULL,
    errno.EDQUOT: Reason.DISK_FULL,
    errno.EFBIG: Reason.TOO_LARGE,
    errno.EOVERFLOW: Reason.TOO_LARGE,
}


def translate(verb: str, path: bytes, error: OSError) -> FileRefused | FileFailed:
    """Say what the kernel's answer means; whatever is not named here is ours."""
    reason = _REASONS.get(error.errno or 0)
    words = f"cannot {verb} {show_path(path)}: {_explain(reason, error)}"
    return FileFailed(words) if reason is None else FileRefused(reason, words)


def refuse(reason: Reason, verb: str, path: bytes, why: str) -> FileRefused:
    """Build a refusal of our own."""
    return FileRefused(reason, f"cannot {verb} {show_path(path)}: {why}")


def show_path(path: bytes) -> str:
    """Print a path that may be any bytes."""
    text = path.decode(errors="backslashreplace")
    return repr(text if len(text) <= 200 else text[:100] + "..." + text[-97:])


def _explain(reason: Reason | None, error: OSError) -> str:
    match reason:
        case Reason.OUTSIDE:
            return "it is not on the sandbox's own disk"
        case Reason.BUSY:
            return "a process in the sandbox holds it or keeps changing it; ask again"
        case Reason.DISK_FULL:
            return "the sandbox's disk is full"
        case Reason.NOT_A_FILE:
            return "it is no regular file"
    return os.strerror(error.errno) if error.errno else str(error)
