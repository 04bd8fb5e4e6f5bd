"""A host that is gone, and a reader that only pauses: told apart by the kernel's own counts."""

import contextlib
import gc
import socket
import struct
import weakref
from collections.abc import Iterator

import pytest
from far_scenes import until

from retinue.gateway import pulse as room
from retinue.gateway.pulse import SILENCE_MS, Pulse, is_silent


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def build_counts(unacked: int, last_sent_ms: int, last_ack_ms: int) -> bytes:
    return struct.pack("=24xI16xI8xI", unacked, last_sent_ms, last_ack_ms) + bytes(100)


@pytest.mark.parametrize(
    ("unacked", "last_sent_ms", "last_ack_ms", "expected"),
    [
        (0, 0, SILENCE_MS * 9, False),
        (3, 0, SILENCE_MS, False),
        (3, 900, SILENCE_MS + 1, True),
        (3, SILENCE_MS + 40, SILENCE_MS + 20, False),
    ],
    ids=["nothing-sent", "not-yet", "no-answer", "answered-and-dropped"],
)
def test_silence_is_bytes_on_their_way_and_no_word_since(
    unacked: int, last_sent_ms: int, last_ack_ms: int, expected: bool
) -> None:
    assert is_silent(build_counts(unacked, last_sent_ms, last_ack_ms)) is expected


async def test_a_reader_that_pauses_for_ever_is_not_taken_for_a_lost_host(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = pair
    pulse = Pulse()
    pulse.watch(near)
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(bytes(65536))
    # Once what was on its way has arrived; from then on the kernel's idea of "now" is the only thing that moves.
    await until(lambda: near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)[24:28] == bytes(4))
    monkeypatch.setattr(room, "SILENCE_MS", -1)
    pulse.look()
    with pytest.raises(BlockingIOError):
        near.recv(1)


async def test_the_owner_of_a_silent_connection_reads_its_end(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, _ = pair
    pulse = Pulse()
    pulse.watch(near)
    pulse.look()
    near.setblocking(False)
    with pytest.raises(BlockingIOError):
        near.recv(1)
    monkeypatch.setattr(room, "is_silent", lambda counts: True)
    pulse.look()
    assert near.recv(1) == b""


def test_sockets_that_are_closed_or_forgotten_are_not_looked_at(pair: tuple[socket.socket, socket.socket]) -> None:
    pulse = Pulse()
    closed, forgotten = pair[0], pair[1].dup()
    for sock in (closed, forgotten):
        pulse.watch(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    closed.close()
    gone = weakref.ref(forgotten)
    forgotten.close()
    del forgotten, sock
    gc.collect()
    pulse.look()
    assert gone() is None
    assert not pulse._sockets
