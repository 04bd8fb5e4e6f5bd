"""The agent and the gateway die, hang and refuse to start; the node goes on, or ends and says why."""

import os
import signal
import socket
from typing import Any

from keeper_rig import Node, Puppet, is_running, running_node, wait_for

from retinue.node.orders import Bind, Bound, RoleRestarted


def pick_port() -> int:
    """A port that was free a moment ago; keepers under test bind it for themselves."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask_gateway(port: int) -> int:
    """Connect and read the pid that the gateway answers with; held in the backlog while none lives."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        return int(connection.makefile().readline() or 0)


def bind(puppet: Puppet, port: int) -> Bound:
    puppet.send(Bind(port))
    return puppet.hear(Bound)


def find_role(node: Node, word: str) -> list[int]:
    pids = []
    for pid in node.marked_pids():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if word.encode() in file.read():
                pids.append(pid)
    return pids


def expect_end(node: Node, code: int) -> dict[str, Any]:
    found, report = node.finish()
    assert (found, report["clean"]) == (code, True), report
    node.wait_gone()
    return report


def test_a_hung_agent_is_replaced_and_its_services_are_not() -> None:
    with running_node(beat_timeout_s=0.6) as node:
        puppet = node.first_agent()
        spawned, _ = puppet.start("judge/0", f"exec sleep {node.mark}")
        os.kill(puppet.pid, signal.SIGSTOP)
        successor = node.next_agent()
        assert [kept.pid for kept in successor.take_inventory().kept] == [spawned.pid]
        assert "no beat" in successor.hear(RoleRestarted).reason
        assert not is_running(puppet.pid)
        assert is_running(spawned.host_pid)


def test_an_agent_that_never_beats_is_replaced_too() -> None:
    with running_node(first_beat_s=0.4, agent_argv=("sleep", "100"), agent_limit=1) as node:
        assert "no first beat" in expect_end(node, 4)["note"]


def test_a_keeper_that_was_stopped_itself_blames_nobody() -> None:
    with running_node(beat_timeout_s=1.0) as node:
        puppet = node.first_agent()
        port = pick_port()
        bind(puppet, port)
        gateway = ask_gateway(port)
        frozen = [puppet.pid, *find_role(node, "keeper_gateway")]
        os.kill(node.keeper_pid, signal.SIGSTOP)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)  # The whole node froze: no beat waits in the socket.
        stopped_s = os.times().elapsed
        wait_for("more than the beat's limit and the stall's", lambda: os.times().elapsed - stopped_s > 2.6)
        for pid in (node.keeper_pid, *frozen):
            os.kill(pid, signal.SIGCONT)
        spawned, _ = puppet.start("judge/0", f"exec sleep {node.mark}")
        assert is_running(spawned.host_pid)
        assert ask_gateway(port) == gateway
        assert not [order for order in puppet.heard if isinstance(order, RoleRestarted)]


def test_an_agent_that_dies_too_often_ends_the_node_with_its_last_words() -> None:
    with running_node(agent_argv=("sh", "-c", "exit 5"), agent_limit=2) as node:
        report = expect_end(node, 4)
        assert "died 3 times" in report["note"]
        assert "exit code 5" in report["note"]


def test_an_agent_that_cannot_be_executed_ends_the_node_with_the_cause() -> None:
    with running_node(agent_argv=("no-such-agent",), agent_limit=0) as node:
        assert "no-such-agent" in expect_end(node, 4)["note"]


def test_a_long_life_forgives_the_deaths_before_it() -> None:
    with running_node(agent_limit=1, agent_forgiven_s=0.0) as node:
        puppet = node.first_agent()
        for starts in (2, 3, 4):
            os.kill(puppet.pid, signal.SIGKILL)
            puppet = node.next_agent()
            assert puppet.take_inventory().starts == starts


def test_an_agent_that_talks_nonsense_is_replaced() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        puppet.end.send(b'{"o":"Nonsense"}')
        successor = node.next_agent()
        assert successor.take_inventory().starts == 2
        assert "no order" in successor.hear(RoleRestarted).reason


def test_a_gateway_that_dies_is_started_again_on_the_same_socket() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        port = pick_port()
        assert bind(puppet, port).is_bound
        first = ask_gateway(port)
        for starts in (2, 3):
            host_pid = wait_for("the gateway", lambda: find_role(node, "keeper_gateway"))[0]
            os.kill(host_pid, signal.SIGKILL)
            wait_for("the gateway to be dead", lambda pid=host_pid: not is_running(pid))
            # Asked at once: the keeper holds the socket, so this waits instead of being refused.
            second = ask_gateway(port)
            assert second not in (0, first)
            restarted = puppet.hear(RoleRestarted)
            assert (restarted.role, restarted.starts) == ("gateway", starts)
            assert "SIGKILL" in restarted.reason


def test_a_hung_gateway_is_replaced_and_what_waited_for_it_is_answered() -> None:
    with running_node(beat_timeout_s=0.6) as node:
        puppet = node.first_agent()
        port = pick_port()
        bind(puppet, port)
        first = ask_gateway(port)
        hung = find_role(node, "keeper_gateway")[0]
        os.kill(hung, signal.SIGSTOP)
        assert ask_gateway(port) not in (0, first)
        restarted = puppet.hear(RoleRestarted)
        assert (restarted.role, restarted.starts) == ("gateway", 2)
        assert restarted.reason == "no beat for 0.6 s (signal SIGKILL)"
        assert not is_running(hung)
        assert find_role(node, "keeper_puppet"), "the agent is not meant"


def test_a_gateway_that_never_beats_or_closed_its_pipe_is_replaced_too() -> None:
    for script, reason in (("exec sleep 100", "no first beat"), ("echo >&{beat_fd}; exec sleep 100", "no beat")):
        with running_node(first_beat_s=0.4, beat_timeout_s=0.4, gateway_argv=("bash", "-c", script)) as node:
            puppet = node.first_agent()
            bind(puppet, pick_port())
            assert puppet.hear(RoleRestarted).reason.startswith(reason)


def test_the_gateway_survives_its_agent_and_the_next_one_is_told_its_port() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        port = pick_port()
        bind(puppet, port)
        first = ask_gateway(port)
        os.kill(puppet.pid, signal.SIGKILL)
        successor = node.next_agent()
        assert successor.take_inventory().gateway_port == port
        assert ask_gateway(port) == first
        assert bind(successor, port).is_bound
        assert ask_gateway(port) == first


def test_a_taken_port_is_refused_with_the_name_of_its_holder() -> None:
    with running_node() as node, socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        port = holder.getsockname()[1]
        puppet = node.first_agent()
        bound = bind(puppet, port)
        assert (bound.port, bound.is_bound) == (port, False)
        assert f"pid {os.getpid()} (" in bound.holder
        other = pick_port()
        assert bind(puppet, other).is_bound
        assert ask_gateway(other)


def test_another_port_gives_up_the_first_one() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        first, second = pick_port(), pick_port()
        bind(puppet, first)
        old = ask_gateway(first)
        assert bind(puppet, second).is_bound
        assert ask_gateway(second) != old
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            wait_for("the first port to be free", lambda: stranger.connect_ex(("127.0.0.1", first)))
        wait_for("one gateway", lambda: len(find_role(node, "keeper_gateway")) == 1)


def test_a_log_that_grew_too_long_is_emptied() -> None:
    script = "while :; do echo 0123456789012345678901234567890123456789; done"
    with running_node(gateway_argv=("sh", "-c", script), log_limit_bytes=100_000) as node:
        puppet = node.first_agent()
        bind(puppet, pick_port())
        log = node.node_dir / "gateway.log"
        wait_for("a log", lambda: log.exists() and log.stat().st_size > 100_000)
        wait_for("an emptied log", lambda: log.stat().st_size < 100_000)
