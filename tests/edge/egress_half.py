"""A keeper's guard with one child and a first supervisor that dies over the child's call.

`python egress_half.py WHEN PORT` prints one line of JSON: the child's exit code, how often a supervisor was
started, and the child's send timeout afterwards. WHEN: `taken` (before anything was done), `begun` (a blocking
connect was begun and its socket still has the supervisor's timeout), `always` (every supervisor dies so).
"""

import json
import os
import select
import signal
import sys
import time

from retinue.egress import answering, connecting, sockets
from retinue.egress.supervisor import run_supervisor
from retinue.egress.trial import find_machine
from retinue.node.guard_role import GuardRole
from retinue.node.settings import NodeSettings
from retinue.node.spawn import Command, spawn
from retinue.node.wakeup import catch_signals, read_signals, reap_children
from retinue.terms.egress import EgressRule

CHILD = """
import socket, struct, sys
end = socket.socket()
end.setsockopt(1, 21, struct.pack("ll", 7, 0))
end.settimeout(None)
code = end.connect_ex(("127.0.0.1", {port}))
seconds, rest = struct.unpack("ll", end.getsockopt(1, 21, 16))
sys.exit(code if (seconds, rest) == (7, 0) else 250)
"""


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Half:
    """What the forks do: the first one (or every one) dies at a certain moment, the others work."""

    def __init__(self, when: str, starts_fd: int) -> None:
        self.when = when
        self.starts_fd = starts_fd

    def run(self, machine: object, keeper_fd: int, slate_fd: int) -> None:
        kept = os.dup2(keeper_fd, 100), os.dup2(slate_fd, 101)
        is_first = os.pread(self.starts_fd, 1, 0) == b""
        os.write(self.starts_fd, b".")
        if is_first or self.when == "always":
            if self.when == "begun":
                connect = sockets.connect
                # The connect happens, and its answer dies with who asked; the timeout is still the supervisor's.
                connecting.sockets.connect = lambda *words: (connect(*words), die())[0]
            else:
                answering.Answering._answer_connect = die
        run_supervisor(machine, *kept)


def main() -> int:
    when, port = sys.argv[1], sys.argv[2]
    starts_fd = os.memfd_create("starts")
    wakeup = catch_signals((signal.SIGCHLD,))
    role = GuardRole(NodeSettings(), find_machine(), "", run=Half(when, starts_fd).run)
    expected = role.expect("a/0", EgressRule())
    assert expected is not None
    argv = (sys.executable, "-S", "-c", CHILD.format(port=port))
    child = spawn(Command(argv=argv, env={}, stderr=2), steps=(("guard", expected.handover.install),))
    role.forked(expected, child.pid)
    status = None
    until_s = time.monotonic() + 30
    while status is None and time.monotonic() < until_s:
        poller = select.poll()
        for fd in (wakeup, *role.list_handovers(), *((role.end.fileno(),) if role.end else ())):
            poller.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(20)}
        for fd in ready.intersection(role.list_handovers()):
            role.take_handover(fd)
        now_s = time.monotonic()
        role.hear(now_s)
        read_signals(wakeup)
        for pid, how in reap_children():
            role.take_exit(pid, how, now_s)
            status = os.waitstatus_to_exitcode(how) if pid == child.pid else status
        role.tick(now_s)
    role.hear(time.monotonic())
    print(json.dumps({"code": status, "starts": role.starts, "denied": [line.what for line in role.ledger.list_all()]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
