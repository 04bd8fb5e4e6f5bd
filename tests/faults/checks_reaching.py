"""Attacks that reach for what is not theirs: processes, secrets, memory, files, the network, the kernel.

Each runs inside a check as text; what it returns is its loot. `gold` says all that an attacker could know.
"""

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import time

from checks_stage import Attack
from checks_tools import LIBC, attempt, call, connect, need_walls, read

from retinue.client import OutcomeKind


def kill_parent(gold):
    parent = os.getppid()
    return attempt(lambda: os.kill(parent, signal.SIGKILL)) if parent else []


def kill_the_run(gold):
    loot = []
    for pid in gold["pids"].values():
        loot += attempt(lambda pid=pid: os.kill(pid, signal.SIGKILL))
        loot += attempt(lambda pid=pid: os.killpg(pid, signal.SIGKILL))
        loot += attempt(lambda pid=pid: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
    return loot


def kill_by_descriptor(gold):
    """Whoever owns a descriptor gets the signal of its choice when there is something to read."""
    loot = []
    for pid in gold["pids"].values():
        one, other = socket.socketpair()
        call("fcntl", one.fileno(), 10, int(signal.SIGKILL))
        loot += call("fcntl", one.fileno(), 8, pid)
        attempt(lambda one=one: fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK))
        other.send(b"x")
    return loot


def kill_everyone(gold):
    need_walls()
    loot = attempt(lambda: os.kill(-1, signal.SIGKILL))
    attempt(lambda: os.kill(1, signal.SIGKILL))
    for pid in range(2, 100_001):
        loot += attempt(lambda pid=pid: os.kill(pid, signal.SIGKILL))
    return loot


def signal_everyone(gold):
    """Only asks whether it could, so it may be tried where nothing but a filter is between it and the machine."""
    others = [-1, *range(1, 100_001)]
    others.remove(os.getpid())
    return [pid for pid in others if attempt(lambda pid=pid: os.kill(pid, 0))]


def trace_anyone(gold):
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    remote = (ctypes.c_void_p * 2)(id(gold), 8)
    loot = []
    family = (0, 1, 2, os.getppid()) if os.getpid() == 1 else ()
    for pid in (*family, *gold["pids"].values()):
        loot += call("ptrace", 16, pid, 0, 0) + call("ptrace", 0x4206, pid, 0, 0)
        loot += call("process_vm_readv", pid, local, 1, remote, 1, 0)
        loot += call("process_vm_writev", pid, local, 1, remote, 1, 0)
    return loot


def read_secrets(gold):
    loot = []
    for path in gold["secrets"]:
        loot += read(path)
    return loot


def read_environments(gold):
    loot = [name for name in os.environ if name.startswith(("RETINUE", "SLURM"))]
    family = (*os.listdir("/proc"), "self", "1") if os.getpid() == 1 else ()
    for name in (*family, *map(str, gold["pids"].values())):
        for file in ("environ", "cmdline", "maps", "mem", "fd", "root"):
            loot += read(f"/proc/{name}/{file}")
    return loot


def search_memory(gold):
    """All of the own heap and stack, for words that are given shifted by one, so that looking for them plants none."""
    out, into = os.pipe()
    shift = bytes((number + 1) % 256 for number in range(256))
    environment = LIBC.getauxval
    environment.restype = LIBC.sbrk.restype = ctypes.c_void_p
    places = [(LIBC.sbrk(0), 64 * 2**20), (environment(31) + 4096, 2**18)]
    places += [(id(module) + 2**20, 2**21) for module in list(sys.modules.values())[::40]]
    loot = []
    for top, size in places:
        page = top & ~4095
        for address in range(page - size, page, 4096):
            if LIBC.write(into, ctypes.c_void_p(address), 4096) == 4096:
                page_shifted = os.read(out, 4096).translate(shift)
                loot += [word for word in gold["shifted"] if word.encode() in page_shifted]
    return loot


def attach_shared_memory(gold):
    LIBC.shmat.restype = ctypes.c_long
    loot = [f"shm {number}" for number in range(64) if LIBC.shmat(number, None, 0o10000) > 0]
    return loot + call("shmget", 7, 4096, 0o1600) + call("semget", 7, 1, 0o1600) + call("msgget", 7, 0o1600)


def write_elsewhere(gold):
    loot = []
    own = os.stat("/tmp").st_dev
    for place in (*gold["places"], *gold["system"]):
        if os.path.exists(place) and os.stat(place).st_dev == own:
            continue
        path = f"{place}/planted-{os.getpid()}"
        loot += attempt(lambda path=path: [path, os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))][:1])
    for path in (f"{gold['places'][-1]}/evil.py", gold["secrets"][2]):
        loot += attempt(lambda path=path: [path, os.close(os.open(path, os.O_WRONLY))][:1])
        loot += attempt(lambda path=path: os.chmod(path, 0o600)) + attempt(lambda path=path: os.utime(path))
    return loot


def connect_anywhere(gold):
    loot = []
    for port in gold["ports"]:
        loot += connect(socket.AF_INET, ("127.0.0.1", port)) + connect(socket.AF_INET6, ("::1", port))
        loot += connect(socket.AF_INET, ("127.0.0.1", port), socket.SOCK_DGRAM)
    for path in (*gold["sockets"], "\0retinue"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
            loot += connect(socket.AF_UNIX, path, kind)
    for family, kind in ((socket.AF_NETLINK, socket.SOCK_RAW), (socket.AF_VSOCK, socket.SOCK_STREAM)):
        loot += attempt(lambda family=family, kind=kind: str(socket.socket(family, kind)))
    return loot


def leave_the_jail(gold):
    loot = []
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        loot += call("unshare", flag)
    loot += call("setns", 3, 0) + call("chroot", b"/tmp") + call("syscall", 155, b"/tmp", b"/tmp")
    loot += call("mount", b"none", b"/tmp", b"tmpfs", 0, None) + call("mount", b"/", b"/tmp", None, 4096, None)
    loot += (
        call("mount", None, b"/", None, 32 | 4096, None) + call("umount2", b"/proc", 2) + call("umount2", b"/tmp", 2)
    )
    loot += call("syscall", 428, -100, b"/", 1) + call("syscall", 430, b"tmpfs", 0) + call("sethostname", b"x", 1)
    loot += attempt(lambda: os.setuid(0)) if os.getuid() else []
    loot += attempt(lambda: os.setgroups([0]))
    return loot + call("syscall", 304, 3, None, 0) + call("syscall", 425, 8, ctypes.create_string_buffer(256))


def open_devices(gold):
    loot = []
    for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "fuse", "kvm", "tty", "ptmx", "console"):
        loot += attempt(lambda name=name: os.open(f"/dev/{name}", os.O_RDONLY))
    for name in ("sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/hostname"):
        loot += attempt(lambda name=name: os.open(f"/proc/{name}", os.O_WRONLY))
    for kind in (0o20666, 0o60666):
        loot += attempt(lambda kind=kind: os.mknod("/tmp/device", kind, os.makedev(1, 1)))
    return loot


def take_priority(gold):
    """Up for itself, down for others; down for itself is allowed and no loot."""
    loot = attempt(lambda: os.nice(-1))
    loot += attempt(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC):
        hard = resource.getrlimit(kind)[1]
        loot += attempt(lambda kind=kind, hard=hard: resource.setrlimit(kind, (hard + 1, hard + 1)))
    for pid in gold["pids"].values():
        loot += attempt(lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19))
        loot += attempt(lambda pid=pid: os.setpriority(os.PRIO_PGRP, pid, 19))
        loot += attempt(lambda pid=pid: os.sched_setaffinity(pid, {0}))
        loot += attempt(lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)))
    attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19))
    LIBC.syscall(251, 3, 0, (3 << 13) | 7)
    return loot


def patch_the_checker(gold):
    """For the next check: the verifiers, what converts scores, the language."""
    import builtins
    import re

    modules = [module for name, module in sys.modules.items() if name.startswith("retinue.checks")]
    for module in modules:
        for name in ("check", "judge", "_read_score", "cut_text", "_fold"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: 1.0)
    if gold["exits"]:
        builtins.len = lambda _: 1
        re.compile = json.loads = None
        sys.modules["json"] = sys.modules["unicodedata"] = sys
        os._exit(0)


def delete_the_modules(gold):
    sys.modules.clear()
    return []


def leave_traces(gold):
    for name in ("planted", ".hidden", "a" * 200):
        with open(f"{gold['tmp']}/{name}", "w") as file:
            file.write("for the next one")
    os.environ["PLANTED"] = "1"
    os.chdir(gold["tmp"])
    os.umask(0o077)
    return []


def find_traces(gold):
    """The check after `leave_traces`."""
    loot = [name for name in os.listdir(gold["tmp"]) if name in ("planted", ".hidden", "a" * 200)]
    return loot + [name for name in ("PLANTED",) if name in os.environ] + [os.getcwd()] * (os.getcwd() != "/")


def keep_descriptors_in_flight(gold):
    """Fill the user's allowance of descriptors under way, which host and warm parent need too."""
    pairs = []
    for _ in range(20):
        try:
            pairs.append(socket.socketpair())
            while True:
                socket.send_fds(pairs[-1][0], [b"x"], [0] * 200, socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                break
    time.sleep(0.3)
    return []


def hand_descriptors_to_the_host(gold):
    """Through the one socket it has; an endless null device and its own end among them."""
    with socket.socket(fileno=os.dup(3)) as host:
        for _ in range(20):
            attempt(lambda: socket.send_fds(host, [b"\0"], [0, 1, 2, 3] * 30, socket.MSG_DONTWAIT))
    return []


ATTACKS = [
    Attack(kill_parent),
    Attack(kill_the_run),
    Attack(kill_by_descriptor),
    Attack(kill_everyone),
    Attack(signal_everyone),
    Attack(trace_anyone),
    Attack(read_secrets),
    Attack(read_environments),
    Attack(search_memory),
    Attack(attach_shared_memory),
    Attack(write_elsewhere),
    Attack(connect_anywhere),
    Attack(leave_the_jail),
    Attack(open_devices),
    Attack(take_priority),
    Attack(patch_the_checker, (OutcomeKind.KILLED,), says="exited with 0"),
    Attack(delete_the_modules, (OutcomeKind.SCORED, OutcomeKind.KILLED)),
    Attack(keep_descriptors_in_flight),
    Attack(hand_descriptors_to_the_host, (OutcomeKind.KILLED,), says="protocol"),
]
