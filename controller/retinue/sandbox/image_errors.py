"""Why an image cannot be used: who asked must change something, or this node cannot, or this time it failed.

Only the first is the caller's; the other two are ours and never a score.
"""

import errno
from enum import StrEnum

from retinue.errors import PermanentError, TransientError

GIVE = "give a SIF file, a squashfs file or a directory"
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Reason(StrEnum):
    """What is wrong with an image that is refused."""

    NOT_FOUND = "not_found"
    """There is nothing of that name."""
    UNREADABLE = "unreadable"
    """This user may not read it, or not all of it."""
    NOT_AN_IMAGE = "not_an_image"
    """Neither SIF nor squashfs nor a directory."""
    UNSUPPORTED = "unsupported"
    """An image, of a kind that cannot be mounted here: encrypted, for another machine, an unknown compression."""
    DAMAGED = "damaged"
    """Was an image: cut short, overwritten, or made to break its reader."""


class ImageRefused(PermanentError):
    """This image cannot be used until whoever named it changes something."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class NodeRefused(PermanentError):
    """This node cannot use any such image until its admin changes something."""


class ImageFailed(TransientError):
    """It did not work this time: a full disk, storage that does not answer, a daemon that was killed."""


def refuse_path(name: str, error: OSError) -> ImageRefused | ImageFailed:
    """Translate what the file system says about an image."""
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            hint = "it is a path, or a name relative to the store"
            if ":" in name:
                hint = "container images are not pulled here: convert it to a SIF file first"
            return ImageRefused(Reason.NOT_FOUND, f"cannot find image {name!r}: {error.strerror}; {hint}")
        case errno.EACCES | errno.EPERM:
            where = f" {error.filename!r}" if error.filename else ""
            return ImageRefused(Reason.UNREADABLE, f"cannot read image {name!r}: {error.strerror}{where}")
        case errno.ELOOP | errno.ENAMETOOLONG:
            return ImageRefused(Reason.NOT_FOUND, f"cannot find image {name!r}: {error.strerror}; {GIVE}")
        case errno.ENXIO | errno.ENODEV:
            return ImageRefused(Reason.NOT_AN_IMAGE, f"cannot open image {name!r}: {error.strerror}; {GIVE}")
    return ImageFailed(f"cannot read image {name!r}: {error.strerror or error}")
