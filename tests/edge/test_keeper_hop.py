"""The socket that other nodes' gateways call: held by the keeper on every address, whoever serves it or has died."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from keeper_rig import HERE, Puppet, is_running, running_node, wait_for
from test_keeper_roles import ask_gateway, find_role, pick_port

from retinue.node.gateway_role import listen_everywhere
from retinue.node.orders import Bind, Bound, RoleRestarted

HOP_GATEWAY = (sys.executable, str(HERE / "keeper_gateway.py"), "{hop_fd}", "{beat_fd}")
"""Answers with its pid on the hop socket."""


def bind_hop(puppet: Puppet, port: int) -> Bound:
    puppet.send(Bind(port, wants_hop=True))
    return puppet.hear(Bound)


def ask_hop(port: int, address: str = "127.0.0.1") -> int:
    with socket.create_connection((address, port), timeout=20) as connection:
        return int(connection.makefile().readline() or 0)


def test_the_hop_socket_answers_on_every_address_and_outlives_gateway_and_agent() -> None:
    with running_node(gateway_argv=HOP_GATEWAY) as node:
        puppet = node.first_agent()
        bound = bind_hop(puppet, pick_port())
        assert bound.is_bound
        assert bound.hop_port is not None
        first = ask_hop(bound.hop_port)
        assert ask_hop(bound.hop_port, "127.0.3.7") == first
        host_pid = wait_for("the gateway", lambda: find_role(node, "keeper_gateway"))[0]
        os.kill(host_pid, signal.SIGKILL)
        wait_for("the gateway to be dead", lambda: not is_running(host_pid))
        assert ask_hop(bound.hop_port) not in (0, first)
        puppet.hear(RoleRestarted)
        os.kill(puppet.pid, signal.SIGKILL)
        assert node.next_agent().take_inventory().hop_port == bound.hop_port


def test_a_refused_port_costs_the_run_no_hop_port() -> None:
    with running_node(gateway_argv=HOP_GATEWAY) as node, socket.create_server(("127.0.0.1", 0)) as holder:
        puppet = node.first_agent()
        refused = bind_hop(puppet, holder.getsockname()[1])
        bound = bind_hop(puppet, pick_port())
        assert (refused.is_bound, bound.is_bound) == (False, True)
        assert bound.hop_port is not None
        assert refused.hop_port == bound.hop_port
        assert ask_hop(bound.hop_port)


def test_a_run_of_one_node_listens_on_loopback_alone() -> None:
    with running_node() as node:
        puppet = node.first_agent()
        port = pick_port()
        puppet.send(Bind(port))
        assert puppet.hear(Bound).hop_port is None
        assert ask_gateway(port)
        tables = [Path(f"/proc/{node.keeper_pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        held = [line.split() for table in tables for line in table.splitlines()[1:]]
        inodes = {os.readlink(f"/proc/{node.keeper_pid}/fd/{fd}") for fd in os.listdir(f"/proc/{node.keeper_pid}/fd")}
        mine = [line[1] for line in held if f"socket:[{line[9]}]" in inodes]
        assert mine == [f"0100007F:{port:04X}"]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_both_families_reach_one_socket(family: socket.AddressFamily) -> None:
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        pytest.skip(f"no {address}: cannot here")
    with listen_everywhere() as listener, socket.socket(family) as caller:
        caller.connect((address, listener.getsockname()[1]))
        listener.accept()[0].close()


def test_without_ipv6_the_hop_socket_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def refuse(family: int = -1, *words: int, **named: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *words, **named)

    monkeypatch.setattr(socket, "socket", refuse)
    with listen_everywhere() as listener:
        assert listener.family == socket.AF_INET
        assert listener.getsockname()[0] == "0.0.0.0"
