"""An operator's question when the controller has several addresses, and some of them are dead, deaf or strangers'."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
from channel_scenes import DEADLINE_S, Desk, bind_listener, build_control, serving

from retinue.channel.messages import Answer, Ask
from retinue.channel.operator import Control, ask_controller
from retinue.errors import PermanentError, TransientError
from retinue.terms.record import replace


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind_listener() as listener:
        yield listener


@contextlib.contextmanager
def deaf_port() -> Iterator[tuple[str, int]]:
    """Connections are taken by the kernel, and nobody ever answers."""
    with bind_listener() as deaf:
        yield deaf.getsockname()


def find_dead_port() -> tuple[str, int]:
    with bind_listener() as other:
        address: tuple[str, int] = other.getsockname()
        return address


def add_addresses(control: Control, *before: tuple[str, int]) -> Control:
    return replace(control, addresses=(*before, *control.addresses))


async def ask(control: Control, timeout_s: float = DEADLINE_S) -> Answer:
    return await asyncio.to_thread(ask_controller, control, Ask("down"), timeout_s)


async def test_a_dead_address_before_the_right_one_costs_nothing(listener: socket.socket) -> None:
    desk = Desk()
    async with serving(listener, desk):
        assert await ask(add_addresses(build_control(listener), find_dead_port())) == Answer(True, "down ")
    assert desk.asks == [Ask("down")]


async def test_addresses_that_swallow_everything_leave_time_for_the_last(listener: socket.socket) -> None:
    desk = Desk()
    with deaf_port() as one, deaf_port() as two, deaf_port() as three:
        async with serving(listener, desk):
            answer = await ask(add_addresses(build_control(listener), one, two, three), timeout_s=4.0)
    assert (answer, desk.asks) == (Answer(True, "down "), [Ask("down")])


async def test_a_stranger_at_the_first_address_is_passed_by(listener: socket.socket) -> None:
    """On a login node loopback is another program's, or another run's."""
    desk, other_desk = Desk(), Desk()
    with bind_listener() as other, socket.create_server(("127.0.0.1", 0)) as plain:
        plain.settimeout(DEADLINE_S)

        def answer_in_plain_text() -> None:
            with plain.accept()[0] as stream:
                stream.sendall(b"220 mail.example ESMTP\r\n")

        speaking = asyncio.create_task(asyncio.to_thread(answer_in_plain_text))
        stranger = build_control(listener, run_id="ffffffffffff", signer="ffffffffffff")
        async with serving(listener, desk), serving(other, other_desk, ca_pem=stranger.ca_pem):
            control = add_addresses(build_control(listener), plain.getsockname())
            assert await ask(control) == Answer(True, "down ")
        await speaking
    assert (len(desk.asks), other_desk.asks) == (1, [])


@pytest.mark.parametrize(("host", "is_first"), [("node001", False), (socket.gethostname(), True), ("", True)])
def test_on_another_host_loopback_comes_last_and_at_home_it_keeps_its_place(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, host: str, is_first: bool
) -> None:
    tried = []

    def refuse(address: tuple[str, int], timeout: float) -> None:
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    loopback, others = ("127.0.0.1", 7), [("10.0.0.1", 7), ("fd00::1", 7), ("node001", 7)]
    control = replace(build_control(listener), host=host, addresses=(loopback, *others))
    with pytest.raises(TransientError):
        ask_controller(control, Ask("down"))
    assert tried == ([loopback, *others] if is_first else [*others, loopback])


async def test_every_address_that_was_tried_is_named_with_what_it_said(listener: socket.socket) -> None:
    dead, other_dead = find_dead_port(), find_dead_port()
    with deaf_port() as deaf, pytest.raises(TransientError) as caught:
        await ask(replace(build_control(listener), addresses=(dead, deaf, other_dead)), 1.0)
    said = str(caught.value)
    assert f"127.0.0.1:{dead[1]}: [Errno 111] Connection refused" in said
    assert f"127.0.0.1:{other_dead[1]}: " in said
    assert "timed out" in said
    assert "retinue status" in said


async def test_when_all_that_answer_are_strangers_asking_again_is_no_help(listener: socket.socket) -> None:
    desk = Desk()
    control = build_control(listener, run_id="ffffffffffff")
    async with serving(listener, desk):
        with pytest.raises(PermanentError, match="not of the run that answers"):
            await ask(add_addresses(control, *control.addresses))
        with pytest.raises(TransientError, match="Connection refused"):
            await ask(add_addresses(control, find_dead_port()))
    assert desk.asks == []


async def test_the_whole_question_ends_in_its_time(listener: socket.socket) -> None:
    with contextlib.ExitStack() as stack:
        deaf = [stack.enter_context(deaf_port()) for _ in range(6)]
        # A sixth of what six connect limits would take.
        async with asyncio.timeout(3.0):
            with pytest.raises(TransientError):
                await ask(replace(build_control(listener), addresses=tuple(deaf)), 0.5)
