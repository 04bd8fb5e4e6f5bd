"""What a policy wrote: twenty programs for ten tasks, half of them wrong, and twelve that misbehave.

Each is run with `python3 -S -E -c PROGRAM HOST_PORT HOST_PID HOST_PATH`: an attacker would look for the last three.
"""

from dataclasses import dataclass

HELD, OUT = "held", "out"


@dataclass(frozen=True)
class Answer:
    """One program, and what must become of it."""

    name: str
    program: str
    stdin: str = ""
    expected: str = ""
    """What a right program prints; empty: there is no right one."""
    outcome: str = "exited"
    score: float = 0.0
    limit_s: float = 20.0
    """Generous: the programs beside it take all the CPU they can get."""


_TASKS = (
    ("sum", "1 2 3 4", "10", "print(sum(map(int, input().split())))", "print(len(input()))"),
    ("reverse", "a b c", "c b a", "print(*input().split()[::-1])", "print(input()[::-2])"),
    ("gcd", "84 36", "12", "import math; print(math.gcd(*map(int, input().split())))", "print(6)"),
    (
        "primes",
        "20",
        "8",
        "n = int(input()); print(sum(all(k % d for d in range(2, k)) for k in range(2, n)))",
        "print(9)",
    ),
    ("palindrome", "level", "True", "s = input(); print(s == s[::-1])", "print(False)"),
    ("factorial", "20", "2432902008176640000", "import math; print(math.factorial(int(input())))", "print(2**61)"),
    ("vowels", "sandbox", "2", "print(sum(c in 'aeiou' for c in input()))", "print(input().count('a'))"),
    (
        "fibonacci",
        "50",
        "12586269025",
        "a, b = 0, 1\nfor _ in range(int(input())): a, b = b, a + b\nprint(a)",
        "print(1/0)",
    ),
    ("sort", "3 1 2", "1 2 3", "print(*sorted(input().split()))", "import sys; sys.exit('I give up')"),
    ("json", '{"a": [1, 2]}', "2", "import json; print(len(json.loads(input())['a']))", "print(input().index('2'))"),
)

_FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
_FLOOD_DISK = """
with open("/tmp/flood", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
"""
_FLOOD_FILES = """
for number in range(10**9):
    open(f"/tmp/{number}", "w").close()
"""
_LEAVE_CHILD = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(10**6)
print("I have ended")
"""
_TRY = """
import ctypes, os, socket, sys
PORT, PID, PATH = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)
got_out = []
def attempt(what, call):
    try:
        if call() is not False:
            got_out.append(what)
    except (OSError, AttributeError):
        pass
"""
_VERDICT = """
print("out: " + ", ".join(got_out) if got_out else "held")
"""
_READ_HOST = (
    _TRY
    + """
attempt("the run's files", lambda: os.listdir(PATH))
attempt("another root", lambda: os.listdir(f"/proc/{PID}/root"))
attempt("host passwords", lambda: open("/etc/shadow").read())
attempt("kernel memory", lambda: open("/dev/kmem", "rb"))
attempt("a disk", lambda: open("/dev/sda", "rb"))
attempt("a way up", lambda: "home" in os.listdir("/" + "../" * 30))
attempt("the run's environment", lambda: any(name.startswith("RETINUE") for name in os.environ))
attempt("a descriptor", lambda: any(int(fd) > 3 for fd in os.listdir("/proc/self/fd")))
"""
    + _VERDICT
)
_CONNECT = (
    _TRY
    + """
attempt("the gateway", lambda: socket.create_connection(("127.0.0.1", PORT), 1))
attempt("the internet", lambda: socket.create_connection(("1.1.1.1", 53), 1))
attempt("a name server", lambda: socket.getaddrinfo("example.org", 80))
attempt("raw packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768))
attempt("the host beside it", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
attempt("a bus", lambda: socket.socket(socket.AF_UNIX).connect("/run/dbus/system_bus_socket"))
"""
    + _VERDICT
)
_KILL = (
    _TRY
    + """
for pid in (PID, PID + 1, -1):
    attempt(f"process {pid}", lambda: os.kill(pid, 9))
os.kill(1, 9)  # No error: the first process of a namespace is not told. Whoever reads "held" has outlived it.
attempt("a limit of another", lambda: libc.prlimit(PID, 7, None, None) == 0)
"""
    + _VERDICT
)
_GET_ROOT = (
    _TRY
    + """
attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0)
attempt("a user namespace", lambda: libc.unshare(0x10000000) == 0)
attempt("a mount namespace", lambda: libc.unshare(0x20000) == 0)
attempt("ptrace", lambda: libc.ptrace(16, 1, 0, 0) == 0)
attempt("a kernel setting", lambda: open("/proc/sys/kernel/core_pattern", "w").write("|/bin/sh"))
attempt("a reboot", lambda: open("/proc/sysrq-trigger", "w").write("b"))
attempt("chroot", lambda: os.chroot("/proc"))
attempt("a device", lambda: os.mknod("/tmp/mem", 0o20666, os.makedev(1, 1)))
attempt("the clock", lambda: libc.clock_settime(0, (ctypes.c_long * 2)(0, 0)) == 0)
"""
    + _VERDICT
)

MISBEHAVING = (
    Answer("floods its output", "while True: print('x' * 1000)", outcome="timed_out", limit_s=2.0),
    Answer("floods the disk", _FLOOD_DISK, outcome="disk_full"),
    Answer("floods the disk with files", _FLOOD_FILES, outcome="disk_full"),
    Answer("takes all memory", "x = []\nwhile True: x.append(bytes(range(256)) * 4096)", outcome="memory_exceeded"),
    Answer("fork bomb", _FORK_BOMB, outcome="timed_out", limit_s=2.0),
    Answer("hangs", "import time; time.sleep(10**6)", outcome="timed_out", limit_s=2.0),
    Answer("spins", "while True: pass", outcome="timed_out", limit_s=2.0),
    Answer("leaves a child behind", _LEAVE_CHILD, expected="I have ended", score=1.0),
    Answer("reads the host", _READ_HOST, expected=HELD, score=1.0),
    Answer("calls out", _CONNECT, expected=HELD, score=1.0),
    Answer("kills what it can", _KILL, expected=HELD, score=1.0),
    Answer("tries to be root", _GET_ROOT, expected=HELD, score=1.0),
)


def list_answers() -> list[Answer]:
    """List all, those that misbehave spread among the others."""
    answers = [
        Answer(f"{name}, {kind}", program, stdin, expected, score=score)
        for name, stdin, expected, right, wrong in _TASKS
        for kind, program, score in (("right", right, 1.0), ("wrong", wrong, 0.0))
    ]
    for number, one in enumerate(MISBEHAVING):
        answers.insert(number * 5 // 2, one)
    return answers
