"""Who owns a run directory: one file, made exclusively, kept fresh by its time stamp. Never flock.

A shared file system has no kernel that releases the lock of a dead node, and clocks of two nodes are
never compared: an owner is dead when its file did not change for 60 s of the reader's own clock, or
at once when its process is gone and the reader can see that.

Taking over is exclusive too. Each owner's record has a nonce, and only who creates
`lock.claim-<that nonce>` (link(2) picks one of many) may put a new record in its place; who dies
with a claim is taken over in the same way, by a claim on its claim. What no lease can prevent: a
process that was stopped between claim and rename for a minute may come back and rename late. It
is the last owner then, and the other one finds out at its next refresh.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from retinue.errors import PermanentError
from retinue.terms.record import DecodeError, Record, from_json, to_json

STALE_S = 60.0
POLL_S = 1.0
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""What a file system without hard links says."""


class Owner(Record, frozen=True):
    """The content of the lock file."""

    run_id: str
    attempt: int
    host: str
    pid: int
    pid_start: int
    """Start time of the process in clock ticks since boot; a pid that was used again has another."""
    where: str
    """Boot and pid namespace: only there does the pid mean this process."""
    nonce: str
    """Different in every record: names the claim on it."""
    job: str = ""
    """Slurm job id; attempts are compared within one job only. Empty outside Slurm."""


class Seen(Record, frozen=True):
    """A lock or claim file as one look found it."""

    owner: Owner
    stamp: tuple[int, int]
    """(inode, mtime in ns): any sign of life changes it."""


class RunLock:
    """The lock of a run that this process (or its stub) holds; `refresh` is called from the writer thread."""

    def __init__(self, path: Path, run_id: str) -> None:
        self._path = path
        self._run_id = run_id
        self.lost_to: Owner | None = None
        """Who took the run over; the run must then stop its agents and write nothing more."""

    def refresh(self) -> None:
        """Show life, or find out that somebody took over.

        Errors: OSError when the file system does not say; nothing is known then.
        """
        seen = look(self._path)
        if seen is None:
            return
        if seen.owner.run_id != self._run_id:
            self.lost_to = seen.owner
            return
        os.utime(self._path)


def take_lock(
    path: Path,
    run_id: str,
    attempt: int,
    job: str = "",
    pid: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Owner:
    """Own the run directory, for process `pid` of this host (None: this one).

    Blocks for as long as it takes to tell a live owner (seconds) from a dead one on another host (60 s).
    An owner of the same run is replaced without ado: that is a hand-over.
    Errors: PermanentError names the owner, when it is alive or of a higher attempt; OSError as the file
            system says.
    """
    own = build_owner(run_id, attempt, job, os.getpid() if pid is None else pid)
    first: Seen | None = None
    since_s = clock()
    while True:
        chain = _look_along(path)
        if not chain:
            if _create(path, own):
                return own
            continue
        _refuse_lower(path, chain[0].owner, own)
        last = chain[-1]
        if first is None or first.owner.nonce != last.owner.nonce:
            first, since_s = last, clock()
        elif first.stamp != last.stamp:
            raise _build_refusal(path, last.owner)
        is_rightful = len(chain) == 1 and _may_replace(last.owner, own)
        if is_rightful or is_owner_alive(last.owner) is False or clock() - since_s >= STALE_S:
            if _take_over(path, chain, own):
                return own
            first = None
            continue
        if is_owner_alive(last.owner) and len(chain) == 1:
            raise _build_refusal(path, last.owner)
        pause(POLL_S)


def build_owner(run_id: str, attempt: int, job: str, pid: int) -> Owner:
    """Describe a process of this host as an owner."""
    start = read_pid_start(pid) or 0
    return Owner(run_id, attempt, os.uname().nodename, pid, start, _read_where(), secrets.token_hex(8), job)


def find_owner(path: Path) -> Owner | None:
    """Read who owns a run directory; None when nobody does, or nobody can say."""
    try:
        seen = look(path)
    except OSError:
        return None
    return seen.owner if seen is not None else None


def is_owner_alive(owner: Owner) -> bool | None:
    """Say whether the owner's process runs; None when it cannot be seen from here."""
    if owner.host != os.uname().nodename or owner.where != _read_where():
        return None
    return read_pid_start(owner.pid) == owner.pid_start


def release_lock(path: Path, run_id: str) -> None:
    """Give the run directory back; nothing happens when another run owns it by now."""
    aside = path.with_name(f"{path.name}.release-{secrets.token_hex(8)}")
    owner = find_owner(path)
    if owner is None or owner.run_id != run_id:
        return
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    moved = find_owner(aside)
    if moved is not None and moved.run_id != run_id:
        # Taken over between the look and the rename: give the new owner its file back.
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
    os.unlink(aside)


def look(path: Path) -> Seen | None:
    """Read a lock file; None when there is none.

    Errors: OSError other than a missing file. What is not a record of ours has an owner without name.
    """
    try:
        # Opening, not stat: NFS may serve attributes from a cache for a minute, but asks the server on open.
        with open(path, "rb") as stream:
            facts = os.fstat(stream.fileno())
            content = stream.read()
    except FileNotFoundError:
        return None
    try:
        owner = from_json(content, Owner)
    except DecodeError:
        owner = Owner("?", 0, "?", 0, 0, "?", f"inode-{facts.st_ino}")
    return Seen(owner, (facts.st_ino, facts.st_mtime_ns))


def read_pid_start(pid: int) -> int | None:
    """Read when a process started, in ticks since boot; None when it is gone or only waits to be reaped."""
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


def _may_replace(owner: Owner, own: Owner) -> bool:
    is_higher = own.job != "" and owner.job == own.job and owner.attempt < own.attempt
    return is_higher or owner.run_id == own.run_id


def _refuse_lower(path: Path, owner: Owner, own: Owner) -> None:
    if own.job and owner.job == own.job and owner.attempt > own.attempt:
        raise PermanentError(
            f"cannot take run directory {str(path.parent)!r}: attempt {owner.attempt} of job {own.job} has it "
            f"on {owner.host}; this is attempt {own.attempt} and ends here"
        )


def _build_refusal(path: Path, owner: Owner) -> PermanentError:
    return PermanentError(
        f"cannot take run directory {str(path.parent)!r}: run {owner.run_id} on {owner.host} (pid {owner.pid}) "
        "has it and is alive; give this run another --run-dir, or end that one with `retinue down`"
    )


def _claim_path(path: Path, owner: Owner) -> Path:
    return path.with_name(f"{path.name}.claim-{owner.nonce}")


def _look_along(path: Path) -> list[Seen]:
    """The lock, then the claim on it, then the claim on that claim, as far as they go."""
    chain: list[Seen] = []
    seen = look(path)
    while seen is not None:
        chain.append(seen)
        seen = look(_claim_path(path, seen.owner))
    return chain


def _take_over(path: Path, chain: list[Seen], own: Owner) -> bool:
    """Replace the dead owner; False when somebody else was quicker or it lives."""
    claim = _claim_path(path, chain[-1].owner)
    if not _create(claim, own):
        return False
    seen = look(path)
    if seen is None or seen.owner.nonce != chain[0].owner.nonce or seen.stamp != chain[0].stamp:
        os.unlink(claim)
        return False
    temporary = _write_aside(path, own)
    os.rename(temporary, path)
    for older in (*(_claim_path(path, link.owner) for link in chain[:-1]), claim):
        older.unlink(missing_ok=True)
    return True


def _create(path: Path, own: Owner) -> bool:
    """Make the file with its whole content, or not at all; False when the name is taken."""
    temporary = _write_aside(path, own)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        return _create_in_place(path, own)
    finally:
        os.unlink(temporary)
    return True


def _create_in_place(path: Path, own: Owner) -> bool:
    """As `_create`, where a reader may see the file before its content: an owner without name, for a moment."""
    try:
        _write_new(path, own)
    except FileExistsError:
        return False
    return True


def _write_aside(path: Path, own: Owner) -> Path:
    temporary = path.with_name(f"{path.name}.new-{own.nonce}")
    _write_new(temporary, own)
    return temporary


def _write_new(path: Path, own: Owner) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(to_json(own))
