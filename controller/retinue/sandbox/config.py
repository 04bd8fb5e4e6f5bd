"""What one sandbox may use and be, as a record; pure."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from retinue.sandbox.wire import FLAGS_OF_FILTER, Flag

_MIB = 1024**2
_PID_NUMBERS_MIN = 1024
_MASK_BYTES = 128


@dataclass(frozen=True, slots=True)
class BoxConfig:
    """Limits are the sandbox's own; 0 leaves one to what the host has."""

    hostname: str = "sandbox"
    disk_bytes: int = 256 * _MIB
    """All that is written, /dev/shm included unless it has a limit of its own. A tmpfs: what is used is memory."""
    inode_count: int = 65536
    """Files and directories written; a few dozen are ours."""
    shm_bytes: int = 0
    """/dev/shm apart from the disk; 0: within it."""
    memory_bytes: int = 512 * _MIB
    """Anonymous and shared pages of all processes. Watched, so a burst may pass it for a moment."""
    pid_count: int = 256
    """Processes and threads. Exact from Linux 5.14 on; give 0 before it, where the kernel would count the user's."""
    data_bytes: int = 0
    """Private writable memory of one process, refused with ENOMEM rather than killed for."""
    file_bytes: int = 0
    """Length of one file, holes included; 0: any, but with memfd the disk's limit."""
    open_files: int = 1024
    queue_bytes: int = 819_200
    """POSIX message queues."""
    locked_bytes: int = 8 * _MIB
    signal_count: int = 1024
    sysv_bytes: int = 64 * _MIB
    """SysV shared memory in all."""
    inotify_count: int = 16
    """The kernel has `fs.inotify.max_user_instances` for all sandboxes of a node together."""
    pty_count: int = 16
    uid: int = 0
    """Who the sandbox's one user is inside: 0, or another for programs that refuse to run as root."""
    gid: int = 0
    fakes_ids: bool = True
    """chown, setuid and their kin succeed and do nothing, for package managers and tar; False: the kernel refuses."""
    has_net: bool = True
    """Own network namespace with 127.0.0.1 and nothing else; False: no sockets but connected pairs, 0.4 ms less."""
    has_memfd: bool = False
    """memfd_create, whose pages no limit of the sandbox counts; False: ENOSYS, which callers have another way for."""
    nice_by: int = 0
    cpus: frozenset[int] = field(default_factory=frozenset)
    """CPUs it may run on; empty: all of the host's."""
    upper: str = ""
    """Name of an empty directory below the zygote's `uppers`; empty: a tmpfs of disk_bytes."""
    has_userxattr: bool = True
    """False for diagnosis only: rm -rf of an image directory then fails with EIO."""
    env: tuple[tuple[str, str], ...] = (
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("USER", "root"),
    )
    """What each command's environment starts with."""

    @property
    def flags(self) -> Flag:
        """All switches."""
        switches = (
            (Flag.NET, self.has_net),
            (Flag.FAKE_IDS, self.fakes_ids),
            (Flag.MEMFD, self.has_memfd),
            (Flag.NO_USERXATTR, not self.has_userxattr),
        )
        return Flag(sum(flag for flag, is_on in switches if is_on))

    @property
    def filter_flags(self) -> Flag:
        """Which zygote it can be made by."""
        return self.flags & FLAGS_OF_FILTER

    def numbers(self) -> tuple[int, ...]:
        """The numbers of a CREATE message, in the order of `enum wire_config`."""
        return (
            self.flags,
            self.disk_bytes,
            self.inode_count,
            self.shm_bytes,
            self.memory_bytes,
            self.pid_count,
            max(_PID_NUMBERS_MIN, 4 * self.pid_count) if self.pid_count else 0,
            self.data_bytes,
            self.file_bytes or (self.disk_bytes if self.has_memfd else 0),
            self.open_files,
            self.queue_bytes,
            self.locked_bytes,
            self.signal_count,
            self.sysv_bytes,
            self.inotify_count,
            self.pty_count,
            self.uid,
            self.gid,
            self.nice_by,
        )

    def fields(self) -> tuple[bytes, bytes, bytes]:
        """The fields of a CREATE message. No mask and so no affinity without `cpus`."""
        return self.hostname.encode(), os.fsencode(self.upper), encode_cpus(self.cpus)


def encode_cpus(cpus: Iterable[int]) -> bytes:
    """Make the mask that sched_setaffinity(2) takes; empty for no CPUs."""
    mask = sum(1 << cpu for cpu in set(cpus))
    return mask.to_bytes(_MASK_BYTES, "little") if mask else b""
