"""Files that hold keys: 0600, ours, whole or absent. Standard library only.

Never follows a symbolic link in the last place, never trusts a file that another user could have
written or read.
"""

import errno
import os
import stat
from pathlib import Path

from retinue.errors import EdgeError, PermanentError, TransientError

_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system without hard links says."""

_PASSING = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ESTALE,
        errno.EAGAIN,
        errno.EINTR,
        errno.ENFILE,
        errno.EMFILE,
        errno.ENOMEM,
        errno.ETIMEDOUT,
        errno.EBUSY,
    }
)


def translate_file_error(action: str, error: OSError, hint: str = "") -> EdgeError:
    """Turn an OSError into ours: transient when a full or shaky file system caused it, else permanent."""
    kind = TransientError if error.errno in _PASSING else PermanentError
    return kind(f"cannot {action}: {error.strerror or error}{'; ' + hint if hint else ''}")


def create_secret(path: Path, content: bytes) -> None:
    """Write a new 0600 file that appears whole or not at all.

    Errors: PermanentError when something has that name already; TransientError on a full disk.
    """
    temporary = _write_temporary(path, content)
    try:
        # link(2) refuses an existing name, rename(2) would not.
        os.link(temporary, path, follow_symlinks=False)
    except FileExistsError as error:
        raise translate_file_error(f"create {str(path)!r}", error) from None
    except OSError as error:
        if error.errno in _NO_LINKS and not os.path.lexists(path):
            # Only one process writes these files; without links an accident is all that is guarded against.
            os.rename(temporary, path)
            return
        raise translate_file_error(f"create {str(path)!r}", error) from None
    finally:
        temporary.unlink(missing_ok=True)


def replace_secret(path: Path, content: bytes) -> None:
    """Write a 0600 file in the place of an older one, in one step.

    Errors: TransientError on a full disk; PermanentError otherwise.
    """
    temporary = _write_temporary(path, content)
    try:
        os.replace(temporary, path)
    except OSError as error:
        os.unlink(temporary)
        raise translate_file_error(f"replace {str(path)!r}", error) from None


def read_secret(path: Path) -> bytes:
    """Read a file of keys after checking that nobody else could.

    Errors: PermanentError when it is not a plain file of ours with mode 0600 or stricter.
    """
    action = f"read {str(path)!r}"
    try:
        # O_NONBLOCK: opening a FIFO put in our way must not hang.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise translate_file_error(action, error) from None
    try:
        _check_private(os.fstat(descriptor), action)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    except OSError as error:
        raise translate_file_error(action, error) from None
    finally:
        os.close(descriptor)


def _check_private(facts: os.stat_result, action: str) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise PermanentError(f"cannot {action}: not a plain file")
    if facts.st_uid != os.geteuid():
        raise PermanentError(f"cannot {action}: owned by uid {facts.st_uid}, not by uid {os.geteuid()}")
    if facts.st_mode & 0o077:
        mode = stat.S_IMODE(facts.st_mode)
        raise PermanentError(f"cannot {action}: mode {mode:04o} lets others in; it must be 0600")


def _write_temporary(path: Path, content: bytes) -> Path:
    temporary = path.parent / f".{path.name}.{os.uname().nodename}.{os.getpid()}"
    action = f"write {str(path)!r}"
    try:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise translate_file_error(action, error) from None
    try:
        # A full NFS may say so only on close, so close is part of the write.
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise translate_file_error(action, error) from None
    return temporary
