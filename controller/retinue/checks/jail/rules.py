"""What checks may not ask the kernel for. Pure.

Three filters: COMMON is put on by the warm parent and inherited; a child in namespaces adds
NAMESPACED; a child without them adds `build_bare_rules`, which is then the only wall there is.
"""

import errno
import os

from retinue.checks.jail.seccomp import Rule, When

_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020000
"""Every CLONE_NEW* that clone(2) knows."""
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_SET_OWN, _SET_SIGNAL, _SET_OWN_EX = 8, 10, 15
_FIOASYNC, _FIOSETOWN, _SIOCSPGRP = 0x5452, 0x8901, 0x8902
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_STREAM, _SEQPACKET = 1, 5
_PAIR_FLAGS = (0, os.O_CLOEXEC, os.O_NONBLOCK, os.O_CLOEXEC | os.O_NONBLOCK)
_CONNECTED_PAIRS = tuple(kind | flags for kind in (_STREAM, _SEQPACKET) for flags in _PAIR_FLAGS)
"""Types of socketpair(2) that can never be sent elsewhere. Source: SOCK_CLOEXEC and SOCK_NONBLOCK are the O_ flags."""

COMMON = (
    # A socket(2) reaches every pathname socket whatever its mount says, and AF_VSOCK whatever the network namespace;
    # socketpair(2) stays, event loops live on it.
    Rule("socket", errno.EACCES),
    # A pair of datagram sockets (SOCK_RAW is one too) can still be sent from to any path.
    Rule("socketpair", errno.EACCES, When.NONE_OF, 1, _CONNECTED_PAIRS),
    Rule("io_uring_setup io_uring_enter io_uring_register", errno.ENOSYS),
    Rule("ptrace process_vm_readv process_vm_writev process_madvise process_mrelease pidfd_getfd kcmp"),
    Rule("bpf perf_event_open userfaultfd fanotify_init lookup_dcookie"),
    # Session keyrings (Kerberos) are inherited whatever the namespace.
    Rule("keyctl add_key request_key"),
    Rule("init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff acct"),
    Rule("quotactl quotactl_fd open_by_handle_at name_to_handle_at chroot pivot_root"),
    # Memory that neither RLIMIT_AS nor the size of /tmp counts.
    Rule("memfd_create memfd_secret", errno.ENOSYS),
    Rule("shmget msgget semget mq_open", errno.EACCES),
    # Its flags lie in memory where no filter reads them; the C library falls back to clone.
    Rule("clone3", errno.ENOSYS),
    Rule("ioctl", when=When.ONE_OF, argument=1, values=(_TIOCSTI, _TIOCLINUX)),
)

NAMESPACED = (
    Rule("unshare setns mount umount2 open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr"),
    Rule("clone", when=When.ANY_BIT, values=(_CLONE_NEW,)),
)

NO_FORKS = (
    Rule("fork vfork", errno.EAGAIN),
    Rule("clone", errno.EAGAIN, When.NO_BIT, values=(_CLONE_THREAD,)),
)
"""Where RLIMIT_NPROC would count a stranger's processes, or none (root)."""


def build_bare_rules(pid: int, has_landlock: bool) -> tuple[Rule, ...]:
    """What a child without namespaces may not do: start anything, touch any process but itself, change files."""
    return (
        *NAMESPACED,
        Rule("fork vfork execve execveat"),
        Rule("clone", when=When.NO_BIT, values=(_CLONE_THREAD,)),
        Rule("kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo", when=When.NONE_OF, values=(pid,)),
        Rule("pidfd_open pidfd_send_signal"),
        Rule("setpriority ioprio_set", when=When.NONE_OF, argument=1, values=(0, pid)),
        # PRIO_PROCESS is 0, PRIO_PGRP 1, PRIO_USER 2: "0" would be every process of the user.
        Rule("setpriority", when=When.NONE_OF, values=(0,)),
        Rule("ioprio_set", when=When.NONE_OF, values=(1,)),
        Rule(
            "sched_setaffinity sched_setscheduler sched_setparam sched_setattr prlimit64 migrate_pages move_pages",
            when=When.NONE_OF,
            values=(0, pid),
        ),
        # Whoever owns a descriptor gets its signals: another way to kill.
        Rule("fcntl", when=When.ONE_OF, argument=1, values=(_SET_OWN, _SET_SIGNAL, _SET_OWN_EX)),
        Rule("ioctl", when=When.ONE_OF, argument=1, values=(_FIOASYNC, _FIOSETOWN, _SIOCSPGRP)),
        Rule("prctl", when=When.ONE_OF, values=(_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE)),
        # Landlock does not know of these.
        Rule("chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat"),
        Rule("setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat"),
        Rule("truncate mknod mknodat creat mkdir mkdirat rmdir unlink unlinkat", errno.EROFS),
        Rule("rename renameat renameat2 link linkat symlink symlinkat", errno.EROFS),
        *(() if has_landlock else _NO_WRITING),
    )


_NO_WRITING = (
    Rule("open", errno.EROFS, When.ANY_BIT, 1, (_WRITE_FLAGS,)),
    Rule("openat", errno.EROFS, When.ANY_BIT, 2, (_WRITE_FLAGS,)),
    Rule("openat2", errno.ENOSYS),
)
