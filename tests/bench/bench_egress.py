"""What the egress guard costs a service, beside the same service without it.

Run: `PYTHONPATH=controller python tests/bench/bench_egress.py`. Both take turns in a network namespace of their own, so
that nothing leaves the machine. Not a test: asserts nothing.
"""

import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from retinue.egress.trial import find_machine, find_obstacle
from retinue.node.guard_role import GuardRole
from retinue.node.settings import NodeSettings
from retinue.node.spawn import Command, Step, spawn
from retinue.node.wakeup import catch_signals, read_signals, reap_children
from retinue.terms.egress import EgressRule

CALLS = Path(__file__).with_name("egress_calls.py")
ROUNDS = int(os.environ.get("ROUNDS", "5"))
INSIDE = "--inside"
PATIENCE_S = 120.0


def run_once(role: GuardRole, wakeup: int, is_guarded: bool) -> dict[str, float]:
    """Run the calls once; the keeper's loop, as far as the guard needs one."""
    read_fd, write_fd = os.pipe()
    expected = role.expect("bench/0", EgressRule() if is_guarded else None)
    steps: tuple[Step, ...] = (("egress guard", expected.handover.install),) if expected else ()
    argv = (sys.executable, "-S", str(CALLS))
    child = spawn(Command(argv=argv, env=dict(os.environ), stdout=write_fd, stderr=2), steps=steps)
    os.close(write_fd)
    os.close(child.status_fd)
    if expected:
        role.forked(expected, child.pid)
    until_s = time.monotonic() + PATIENCE_S
    ended = False
    while not ended and time.monotonic() < until_s:
        poller = select.poll()
        for fd in (wakeup, *role.list_handovers(), *((role.end.fileno(),) if role.end else ())):
            poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(200)}
        for fd in ready.intersection(role.list_handovers()):
            role.take_handover(fd)
        now_s = time.monotonic()
        role.hear(now_s)
        read_signals(wakeup)
        for pid, status in reap_children():
            role.take_exit(pid, status, now_s)
            ended = ended or pid == child.pid
        role.tick(now_s)
    with open(read_fd) as said:
        found: dict[str, float] = json.load(said)
    return found


def main() -> int:
    if INSIDE not in sys.argv:
        if shutil.which("ip") is None:
            print("egress: not measured, there is no ip (iproute2)")
            return 0
        words = ("unshare", "-Urn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", sys.executable, __file__, INSIDE)
        return subprocess.run(words, check=False).returncode
    obstacle = find_obstacle(has_namespace=False)
    if obstacle:
        print(f"egress: not measured, no guard here: {obstacle}")
        return 0
    wakeup = catch_signals((signal.SIGCHLD,))
    role = GuardRole(NodeSettings(), find_machine(), "")
    plain, guarded = [], []
    for _ in range(ROUNDS):
        plain.append(run_once(role, wakeup, is_guarded=False))
        guarded.append(run_once(role, wakeup, is_guarded=True))
    print(f"{os.cpu_count()} cores, kernel {os.uname().release}; medians of {ROUNDS} rounds, microseconds")
    print(f"{'':<44} {'plain':>9} {'guarded':>9} {'more':>9}")
    for name in plain[0]:
        one, other = (statistics.median(each[name] for each in found) for found in (plain, guarded))
        print(f"{name:<44} {one:>9.1f} {other:>9.1f} {other - one:>+9.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
