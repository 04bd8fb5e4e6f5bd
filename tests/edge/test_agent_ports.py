"""Ports are kept by binding, told by the service itself, and never shared with a stranger."""

import os
import random
import socket
from pathlib import Path

import pytest
from agent_doubles import wait_for
from agent_stage import open_stage

from retinue.errors import TransientError
from retinue.node import ports
from retinue.node.ports import Ports, build_candidates, parse_port, read_port_file
from retinue.terms.launch import ProbeKind, ProbeSpec
from retinue.terms.replica import ReadinessChanged, Started

TCP = ProbeSpec(ProbeKind.READINESS, tcp=True, period_s=0.05, timeout_s=2.0)
WHEN_TOLD = "import os, socket, time\nwhile not os.path.exists('{where}/go'): time.sleep(0.01)\n"
LISTEN = (
    "import socket, signal\ns = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
    "s.bind(('127.0.0.1', int('{port}'))); s.listen()\nwhile True: signal.pause()\n"
)


def bind_without_reuse(port: int) -> bool:
    with socket.socket() as stranger:
        try:
            stranger.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


async def test_a_stranger_cannot_take_the_port_before_the_service_listens(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        started = await stage.start(stage.build_spec(WHEN_TOLD + LISTEN, wants_port=True, probes=(TCP,)))
        assert started.port is not None
        assert not bind_without_reuse(started.port)
        (tmp_path / "go").touch()
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready


async def test_the_reservation_is_released_when_the_service_listens(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await stage.start(stage.build_spec(LISTEN, wants_port=True))
        agent = stage.agent.slots
        assert agent is not None
        await wait_for(lambda: "port" not in agent.by_replica["svc/0"]._held, "release")


async def test_without_port_reuse_a_server_that_cannot_share_binds_all_the_same(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        script = LISTEN.replace("s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)", "pass")
        await stage.start(stage.build_spec(script, wants_port=True, port_reuse=False, probes=(TCP,)))
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready


async def test_a_server_that_cannot_share_is_told_what_to_write(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        script = LISTEN.replace("s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)", "pass")
        await stage.start(stage.build_spec(script, wants_port=True))
        exited = await stage.wait_exit("svc/0")
        assert "port_reuse: false" in exited.last_lines


async def test_the_next_incarnation_keeps_its_port_but_never_one_a_stranger_has(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        first = await stage.start(stage.build_spec("pass", wants_port=True))
        await stage.wait_exit("svc/0")
        second = await stage.start(stage.build_spec("pass", incarnation=2, wants_port=True))
        await stage.wait_exit("svc/0", 2)
        assert second.port == first.port
        # The stranger comes between the reservation and the service: its port is given up before exec.
        slow = stage.build_spec(WHEN_TOLD, incarnation=3, wants_port=True, port_reuse=False)
        third = await stage.start(slow)
        assert third.port == first.port
        with socket.socket() as stranger:
            stranger.bind(("127.0.0.1", third.port or 0))
            stranger.listen()
            (tmp_path / "go").touch()
            await stage.wait_exit("svc/0", 3)
        fourth = await stage.start(stage.build_spec("pass", incarnation=4, wants_port=True))
        assert fourth.port not in (None, first.port)


async def test_a_service_may_choose_its_port_and_tell_it_by_a_file(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        script = (
            "import os, socket, signal\ns = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
            "f = open(os.environ['RETINUE_PORT_FILE'], 'w'); f.write('%d\\n' % s.getsockname()[1]); f.close()\n"
            "while True: signal.pause()\n"
        )
        await stage.start(stage.build_spec(script, probes=(TCP,)))
        assert (await stage.wait_event("svc/0", ReadinessChanged)).is_ready
        told = [event.port for event in stage.controller.events("svc/0") if isinstance(event, Started)]
        assert told[0] is None
        assert isinstance(told[-1], int)
        hello = stage.controller.connect()
        assert hello.observed[0].port == told[-1]


def test_two_reservations_never_share_a_port_and_a_server_that_shares_may_listen() -> None:
    first, port = Ports(random.Random(1)).reserve("a/0", "127.0.0.1")
    second, other = Ports(random.Random(1)).reserve("b/0", "127.0.0.1")
    with first, second, socket.socket() as server:
        assert port != other
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
        server.listen()
        assert not bind_without_reuse(port)


def test_candidates_lie_outside_the_ephemeral_range() -> None:
    drawn = [port for port, _ in zip(build_candidates(32768, 60999, random.Random(2)), range(2000), strict=False)]
    assert all(20_000 <= port < 32_768 or 60_999 < port <= 65_535 for port in drawn)
    everywhere = [port for port, _ in zip(build_candidates(1024, 65535, random.Random(2)), range(50), strict=False)]
    assert all(20_000 <= port <= 65_535 for port in everywhere)


def test_when_no_port_can_be_bound_the_refusal_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "build_candidates", lambda low, high, dice: iter([held_port] * ports.TRIES))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held_port = held.getsockname()[1]
        with pytest.raises(TransientError, match="all in use"):
            Ports().reserve("a/0", "127.0.0.1")


@pytest.mark.parametrize(
    ("text", "port"),
    [
        (b"8123\n", 8123),
        (b" 8123 ", 8123),
        (b"0", None),
        (b"65536", None),
        (b"+8123", None),
        (b"8_123", None),
        (b"", None),
        (b"8123 8124", None),
        ("٨١٢٣".encode(), None),
    ],
)
def test_only_a_whole_port_number_is_believed(text: bytes, port: int | None) -> None:
    assert parse_port(text) == port


def test_a_port_file_that_is_a_link_a_pipe_or_too_long_is_not_believed(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_text("8123\n")
    (tmp_path / "link").symlink_to(good)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_text("8123" + " " * 4096)
    assert read_port_file(str(good)) == 8123
    for name in ("link", "pipe", "long", "absent"):
        assert read_port_file(str(tmp_path / name)) is None
