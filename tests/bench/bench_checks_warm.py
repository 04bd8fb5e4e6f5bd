"""What the walls around a check cost: forks per second and time to a result, beside the same loop without any wall.

Run: `PYTHONPATH=controller:tests/edge python tests/bench/bench_checks_warm.py`. Both loops fork from a process that has
imported and warmed the math verifier; rounds take turns, so that a busy machine slows both. A Python below /tmp pays
for being bound back into every child's /tmp: measure with one elsewhere. Not a test: asserts nothing.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "edge"))

from warm_rig import Warm, build_env

from retinue.checks.records import Limits, WarmConfig
from retinue.terms.record import to_json

ROUNDS = 9
FORKS = 100
CHECKS = 100
SPARES = 64
VERIFIER = "retinue.checks.verifiers.math:check"

LOOP = f"""
import gc, os, sys, time
from retinue.checks.jail.cell import build_cell, confine_child, confine_parent, open_proc
from retinue.checks.jail.choice import choose_jail
from retinue.checks.jail.namespaces import enter_namespaces
from retinue.checks.jail.root import enter_root
from retinue.checks.jail.view import build_view
from retinue.checks.plugins import load_verifier, warm_verifier
from retinue.checks.records import Limits

is_jailed = sys.argv[1] == "jailed"
if is_jailed:
    jail = choose_jail(Limits(), build_view([], os.environ), True)
    self_fd = enter_namespaces()
    proc_fd = open_proc(jail)
verifier = load_verifier("math", "{VERIFIER}")
if is_jailed:
    view = build_view([], os.environ)
    enter_root(view)
    confine_parent(jail)
    cell = build_cell(jail, view, Limits(), self_fd, proc_fd)
warm_verifier("math", "{VERIFIER}", verifier)
gc.collect()
gc.freeze()
fds = os.pipe()
while sys.stdin.readline():
    began_s = time.perf_counter()
    for _ in range({FORKS}):
        pid = cell.fork() if is_jailed else os.fork()
        if pid == 0:
            try:
                if is_jailed:
                    confine_child(cell, *fds)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    print((time.perf_counter() - began_s) / {FORKS}, flush=True)
"""

BARE = f"""
import gc, os, sys, time
from retinue.checks.plugins import load_verifier, warm_verifier

verifier = load_verifier("math", "{VERIFIER}")
warm_verifier("math", "{VERIFIER}", verifier)
gc.collect()
gc.freeze()


def fork():
    ask_read, ask_write = os.pipe()
    tell_read, tell_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(ask_write)
            response = os.read(ask_read, 65536).decode()
            os.write(tell_write, repr(verifier(response, "3/4", {{}})).encode())
        finally:
            os._exit(0)
    os.close(ask_read)
    os.close(tell_write)
    return pid, ask_write, tell_read


while sys.stdin.readline():
    spares = [fork()]
    took_s = []
    for _ in range({CHECKS}):
        began_s = time.perf_counter()
        pid, ask, tell = spares.pop(0)
        os.write(ask, b"so \\\\boxed{{0.75}}")
        spares.append(fork())
        assert os.read(tell, 65536)
        took_s.append(time.perf_counter() - began_s)
        os.close(ask)
        os.close(tell)
        os.waitpid(pid, 0)
    os.close(spares[0][1])
    os.waitpid(spares[0][0], 0)
    print(sum(took_s) / len(took_s), flush=True)
"""


class Loop:
    """One of the loops above, asked for one round at a time."""

    def __init__(self, code: str, *argv: str) -> None:
        command = [sys.executable, "-P", "-c", code, *argv]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def measure_s(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def measure_checks_s(warm: Warm) -> float:
    """Mean time from taking a spare to its result, one check at a time."""
    took_s = []
    for _ in range(CHECKS):
        child = warm.take()
        began_s = time.perf_counter()
        assert child.ask("math", r"so \boxed{0.75}", "3/4").score == 1.0
        took_s.append(time.perf_counter() - began_s)
        warm.children.remove(child)
        child.close()
    return statistics.fmean(took_s)


def read_available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def compare(name: str, bare_s: list[float], jailed_s: list[float]) -> None:
    bare, jailed = statistics.median(bare_s), statistics.median(jailed_s)
    ratios = statistics.median(one / other for one, other in zip(jailed_s, bare_s, strict=True))
    print(f"{name:34} bare {bare * 1e3:6.2f} ms  jailed {jailed * 1e3:6.2f} ms  ratio of rounds, median {ratios:.2f}")


def main() -> None:
    """Print the three comparisons."""
    loops = [Loop(LOOP, "bare"), Loop(LOOP, "jailed")]
    rounds = [[loop.measure_s() for loop in loops] for _ in range(ROUNDS)]
    compare("fork, lock in, exit, reap", [one[0] for one in rounds], [one[1] for one in rounds])
    for loop in loops:
        loop.close()
    config = WarmConfig(verifiers={"math": VERIFIER}, limits=Limits())
    bare = Loop(BARE)
    with Warm(config, env=build_env()) as warm:
        print("rung:", warm.hear_warmed().rung, f"({len(to_json(config))} bytes of configuration)")
        warm.want(2)
        rounds = [[bare.measure_s(), measure_checks_s(warm)] for _ in range(ROUNDS)]
        compare("a math check, from spare to result", [one[0] for one in rounds], [one[1] for one in rounds])
        before_bytes = read_available_bytes()
        warm.want(SPARES)
        for _ in range(SPARES):
            warm.take()
        print(f"memory of an idle spare: {(before_bytes - read_available_bytes()) / SPARES / 2**20:.2f} MiB")
    bare.close()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[2] / "controller"))
    main()
