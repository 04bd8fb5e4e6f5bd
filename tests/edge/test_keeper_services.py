"""Services outlive every agent: same pid, real exit code, nothing held is lost."""

import errno
import json
import os
import re
import resource
import signal
import time
from pathlib import Path

import pytest
from keeper_rig import Node, Puppet, is_running, running_node, wait_for

from retinue.node.descriptors import read_body, write_body
from retinue.node.orders import (
    Kept,
    Reaped,
    Release,
    RoleRestarted,
    Signal,
    Spawn,
    SpawnBody,
    Spawned,
    SpawnRefused,
)

RUNGS = pytest.mark.parametrize("rung", ["namespace", "refused"])


def kill_agent(node: Node, puppet: Puppet) -> Puppet:
    os.kill(puppet.pid, signal.SIGKILL)
    return node.next_agent()


def read_until(fd: int, wanted: bytes) -> bytes:
    """Read a log until it holds this; the reads block, the writer is alive."""
    text = b""
    while wanted not in text:
        piece = os.read(fd, 65536)
        assert piece, f"the log ended before {wanted!r}: {text!r}"
        text += piece
    return text


@RUNGS
def test_a_killed_agent_costs_no_service_and_the_next_one_finds_it(rung: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        assert node.inventory.starts == 1
        assert node.inventory.kept == ()
        spawned, log_fd = puppet.start("judge/0", f"sleep {node.mark}; exit 3")
        os.close(log_fd)
        successor = kill_agent(node, puppet)
        inventory = successor.take_inventory()
        assert inventory.starts == 2
        assert inventory.kept == (Kept("judge/0", 1, spawned.pid, spawned.host_pid, True, held=("log",)),)
        assert is_running(spawned.host_pid)
        assert inventory.agent_host_pid == successor.pid
        assert read_body(successor.handed["judge/0"][0], SpawnBody).note == "about judge/0"
        assert "SIGKILL" in successor.hear(RoleRestarted).reason


@RUNGS
def test_what_a_service_wrote_while_no_agent_lived_is_read_by_the_next(rung: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        fifo = node.place / "say"
        os.mkfifo(fifo)
        spawned, log_fd = puppet.start("judge/0", f"echo before; cat {fifo}; echo after; exec sleep {node.mark}")
        assert read_until(log_fd, b"before\n") == b"before\n"
        os.close(log_fd)
        os.kill(puppet.pid, signal.SIGKILL)
        fifo.write_text("meanwhile\n")
        successor = node.next_agent()
        successor.take_inventory()
        assert read_until(successor.handed["judge/0"][1], b"after\n") == b"meanwhile\nafter\n"
        assert is_running(spawned.host_pid)


@RUNGS
def test_an_exit_that_no_agent_saw_keeps_its_real_code(rung: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        first, _ = puppet.start("judge/0", f"trap 'exit 42' TERM; sleep {node.mark} & wait")
        second, _ = puppet.start("judge/1", f"exec sleep {node.mark}")
        os.kill(puppet.pid, signal.SIGSTOP)  # It lives but hears nothing.
        os.kill(first.host_pid, signal.SIGTERM)
        os.kill(second.host_pid, signal.SIGKILL)
        lines = wait_for("both exits", lambda: len(read_exits(node)) == 2 and read_exits(node))
        assert {line["replica"]: (line["code"], line["signal"]) for line in lines} == {
            "judge/0": (42, None),
            "judge/1": (None, 9),
        }
        kept = {kept.replica: kept for kept in kill_agent(node, puppet).take_inventory().kept}
        assert (kept["judge/0"].is_alive, kept["judge/0"].code, kept["judge/0"].signal) == (False, 42, None)
        assert (kept["judge/1"].is_alive, kept["judge/1"].code, kept["judge/1"].signal) == (False, None, 9)


def read_exits(node: Node) -> list[dict[str, object]]:
    path = node.node_dir / "exits.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@RUNGS
def test_orders_an_agent_sent_before_it_died_are_obeyed(rung: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        os.kill(node.keeper_pid, signal.SIGSTOP)
        puppet.order("judge/0", ["sleep", node.mark])
        puppet.order("judge/1", ["sleep", node.mark])
        puppet.end.close()  # It passes on what is before the end of file, then exits.
        wait_for("the agent to be dead", lambda: not is_running(puppet.pid))
        os.kill(node.keeper_pid, signal.SIGCONT)
        inventory = node.next_agent().take_inventory()
        assert [kept.replica for kept in inventory.kept] == ["judge/0", "judge/1"]


@RUNGS
@pytest.mark.parametrize(
    ("argv", "number"),
    [(["no-such-program"], errno.ENOENT), (["/etc/passwd"], errno.EACCES), ([], errno.EINVAL)],
)
def test_what_cannot_be_executed_is_refused_with_its_errno(rung: str, argv: list[str], number: int) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        os.close(puppet.order("judge/0", argv))
        refused = puppet.hear(SpawnRefused)
        assert (refused.replica, refused.incarnation, refused.errno) == ("judge/0", 1, number)
        successor = kill_agent(node, puppet)
        assert successor.take_inventory().kept == ()


def test_a_file_that_is_no_program_is_refused_as_such() -> None:
    with running_node() as node:
        path = node.place / "garbage"
        path.write_bytes(b"\x00\x01\x02")
        path.chmod(0o755)
        puppet = node.first_agent()
        os.close(puppet.order("judge/0", [str(path)]))
        assert puppet.hear(SpawnRefused).errno == errno.ENOEXEC


def test_an_order_with_too_few_descriptors_starts_nothing() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        body_fd = write_body(SpawnBody(("sleep", node.mark), {"PATH": os.environ["PATH"]}, "/"))
        puppet.send(Spawn("judge/0", 1, ("log",)), (body_fd,))
        os.close(body_fd)
        assert puppet.hear(SpawnRefused).errno == errno.EBADMSG
        assert not list(node._find_mark())


def test_the_same_order_twice_starts_one_process() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        first, _ = puppet.start("judge/0", f"exec sleep {node.mark}")
        os.close(puppet.order("judge/0", ["sleep", node.mark]))
        assert puppet.hear(Spawned) == first
        assert list(node._find_mark()) == [first.host_pid]


@RUNGS
def test_a_signal_reaches_the_group_and_only_the_group(rung: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        # The escapee says that it runs: before its setsid it would still be of the group.
        script = f"setsid sh -c 'echo out; exec sleep {node.mark}' & sleep {node.mark} & wait"
        _, log_fd = puppet.start("judge/0", script)
        read_until(log_fd, b"out\n")
        wait_for("both sleepers", lambda: len(list(node._find_mark())) == 2)
        puppet.send(Signal("judge/0", 1, signal.SIGTERM))
        reaped = puppet.hear(Reaped)
        assert (reaped.code, reaped.signal) == (None, signal.SIGTERM)
        wait_for("the child to be gone", lambda: len(list(node._find_mark())) == 1)


def test_a_signal_after_the_leader_was_reaped_hits_nobody() -> None:
    """Its number may be a stranger's by then; what it left behind is the agent's to sweep."""
    with running_node() as node:
        puppet = node.first_agent()
        puppet.start("judge/0", f"sleep {node.mark} & exit 0")
        puppet.hear(Reaped)
        other, _ = puppet.start("judge/1", f"exec sleep {node.mark}")
        puppet.send(Signal("judge/0", 1, signal.SIGKILL))
        puppet.send(Signal("judge/9", 1, signal.SIGKILL))
        puppet.send(Signal("judge/1", 2, signal.SIGKILL))
        os.close(puppet.order("judge/2", ["no-such-program"]))
        puppet.hear(SpawnRefused)  # Answered after the signals.
        assert is_running(other.host_pid)
        assert len([pid for pid in node._find_mark() if is_running(pid)]) == 2


def test_a_release_closes_what_is_named_then_all_but_never_forgets_the_living() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        spawned, log_fd = puppet.start("judge/0", f"exec sleep {node.mark}")
        puppet.send(Release("judge/0", 1))
        puppet.send(Release("judge/0", 1, ("log",)))
        os.close(puppet.order("judge/1", ["no-such-program"]))
        puppet.hear(SpawnRefused)  # Answered after both releases.
        puppet = kill_agent(node, puppet)
        assert puppet.take_inventory().kept == (Kept("judge/0", 1, spawned.pid, spawned.host_pid, True),)
        puppet.send(Signal("judge/0", 1, signal.SIGKILL))
        puppet.hear(Reaped)
        puppet.send(Release("judge/0", 1))
        puppet.start("judge/2", f"exec sleep {node.mark}")
        assert [kept.replica for kept in kill_agent(node, puppet).take_inventory().kept] == ["judge/2"]
        with open(log_fd, "rb") as log:  # The keeper's copy was closed: this is the last one, and it works.
            assert log.read() == b""


@RUNGS
def test_a_service_inherits_its_tags_and_nothing_of_the_keeper(rung: str) -> None:
    with running_node(rung) as node:
        puppet = node.first_agent()
        script = "env; ls /proc/self/fd | wc -l; ulimit -n; grep -E 'Sig(Blk|Ign)' /proc/self/status; echo done"
        _, log_fd = puppet.start("judge/0", script)
        text = read_until(log_fd, b"done\n").decode()
        assert f"RETINUE_RUN_ID={node.run_id}\n" in text
        assert "RETINUE_NODE=n1\n" in text
        assert "\n4\n" in text  # 0, 1, 2 and the listing's own.
        # 32 and 33 are glibc's own: a child of its posix_spawn (make is one) ignores them, and nobody can change it.
        assert len(re.findall(r"Sig(?:Blk|Ign):\t0000000[01][08]0000000\n", text + "\n")) == 2, text
        assert f"\n{resource.getrlimit(resource.RLIMIT_NOFILE)[1]}\n" in text


def test_a_namespace_has_its_own_shared_memory_and_pids() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        name = f"retinue-test-{node.run_id}"
        script = f"touch /dev/shm/{name}; readlink /proc/self/ns/pid /proc/self/ns/ipc; echo $PPID; id -u; echo done"
        _, log_fd = puppet.start("judge/0", script)
        pid_ns, ipc_ns, parent, uid, _ = read_until(log_fd, b"done\n").decode().split()
        assert (parent, uid) == ("1", str(os.geteuid()))
        assert pid_ns != os.readlink("/proc/self/ns/pid")
        assert ipc_ns != os.readlink("/proc/self/ns/ipc")
        assert not Path("/dev/shm", name).exists()


def test_a_stopped_outer_process_delays_a_service_but_does_not_stop_it() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        os.kill(node.outer.pid, signal.SIGSTOP)
        started_s = time.monotonic()
        spawned, _ = puppet.start("judge/0", f"exec sleep {node.mark}")
        second, _ = puppet.start("judge/1", f"exec sleep {node.mark}")
        assert (spawned.host_pid, second.host_pid) == (0, 0)
        assert spawned.pid != second.pid
        assert time.monotonic() - started_s < 20  # A deadline, not a measurement.
        os.kill(node.outer.pid, signal.SIGCONT)
