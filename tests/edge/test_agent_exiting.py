"""A process that is going away hides nothing: a stranger's answer must not pass because of it."""

import os
import socket
import subprocess
import sys

from retinue.node.listeners import find_holder, find_owner, has_memory, read_listeners


def test_a_zombie_does_not_count_as_a_process_that_hides_its_descriptors() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not has_memory(child.pid)
        assert find_holder(1, [child.pid]) == (None, False)
    finally:
        child.wait()


def test_a_stranger_on_the_port_of_a_dying_replica_is_not_the_replica() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            port = stranger.getsockname()[1]
            assert read_listeners(port)
            owner = find_owner(port, "127.0.0.1", [child.pid])
        assert owner.holder is None
        assert not owner.is_unreadable
    finally:
        child.wait()


def test_a_living_process_has_memory() -> None:
    assert has_memory(os.getpid())
    assert not has_memory(2**22 - 1)
