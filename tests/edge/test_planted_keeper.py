"""A service is bound to no process of ours by a death signal: who forked it may end, and it goes on."""

import sys

from keeper_rig import running_node

READ_DEATH_SIGNAL = """
import ctypes
number = ctypes.c_int(-1)
ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)  # PR_GET_PDEATHSIG
print(f"death signal {number.value}", flush=True)
"""


def test_a_service_has_no_death_signal() -> None:
    with running_node("off") as node:
        puppet = node.first_agent()
        log_fd = puppet.order("judge/0", [sys.executable, "-S", "-c", READ_DEATH_SIGNAL])
        with open(log_fd, "rb") as log:
            assert log.readline() == b"death signal 0\n"
