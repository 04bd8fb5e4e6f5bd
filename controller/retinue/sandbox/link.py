"""One socket to the sandbox program: requests go out, answers find their request, events go to whoever listens.

Never blocks the loop: what the socket does not take at once waits in a queue.
"""

import array
import asyncio
import os
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retinue.errors import TransientError
from retinue.sandbox.wire import PACKET_MAX_BYTES, Kind, Message, decode, encode

_ANSWER_MAX_BYTES = 4096
_CREDENTIALS = struct.Struct("3i")
_ANCILLARY_BYTES = socket.CMSG_SPACE(struct.calcsize("i")) + socket.CMSG_SPACE(_CREDENTIALS.size)


class LinkLost(TransientError):
    """The process at the other end is gone."""


class Refused(TransientError):
    """The program could not do a step of what was asked; carries the kernel's errno."""

    def __init__(self, step: str, number: int) -> None:
        self.step = step
        self.errno = number
        super().__init__(f"cannot {step}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    message: Message
    fd: int
    """A descriptor, the receiver's from now on; -1 for none."""
    pid: int
    """Of the sender, in our pid namespace; 0 when the socket does not ask for it."""


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Make a pair of sockets: ours, which does not block, and the program's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    return ours, theirs


class Link:
    """The host's end of one socket."""

    def __init__(self, sock: socket.socket, on_event: Callable[[Answer], None], on_lost: Callable[[], None]) -> None:
        """Listen at once. on_event gets messages that answer no request; on_lost is called once, not by `close`."""
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._on_lost = on_lost
        self._next_id = 0
        self._waiting: dict[int, tuple[asyncio.Future[Answer], Callable[[Answer], None] | None]] = {}
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._loop.add_reader(sock.fileno(), self._read)

    @property
    def is_open(self) -> bool:
        """Whether something can still be asked."""
        return self._sock.fileno() >= 0

    def post(
        self,
        kind: Kind,
        numbers: Sequence[int] = (),
        fields: Sequence[bytes] = (),
        fds: Sequence[int] = (),
        on_done: Callable[[Answer], None] | None = None,
    ) -> tuple[int, asyncio.Future[Answer]]:
        """Ask; gives the request's id and a future of its answer. The descriptors stay the caller's to close.

        on_done is called with an answer that is no refusal, before any later message is looked at and also when
        nobody waits for the future any more.
        Errors: LinkLost now or by the future; Refused by the future; WireError.
        """
        if not self.is_open:
            raise LinkLost("cannot ask a sandbox: it is gone")
        self._next_id += 1
        number = self._next_id
        encoded = encode(Message(kind, number, tuple(numbers), tuple(fields)))
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = future, on_done
        self._send(encoded, list(fds), number)
        return number, future

    async def ask(
        self,
        kind: Kind,
        numbers: Sequence[int] = (),
        fields: Sequence[bytes] = (),
        fds: Sequence[int] = (),
        on_done: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Ask and wait for the answer. Errors: LinkLost, Refused, WireError."""
        return await self.post(kind, numbers, fields, fds, on_done)[1]

    def close(self) -> None:
        """Hang up: the process at the other end, and all it runs, ends."""
        if not self.is_open:
            return
        self._loop.remove_reader(self._sock.fileno())
        self._loop.remove_writer(self._sock.fileno())
        self._sock.close()
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(LinkLost("cannot hear from a sandbox: it is gone"))
                future.exception()  # Whoever waits gets it all the same; nobody has to.
        self._waiting.clear()

    def _send(self, encoded: bytes, fds: list[int], number: int) -> None:
        own = [os.dup(fd) for fd in fds]
        if len(encoded) > PACKET_MAX_BYTES:
            own.insert(0, _write_file(encoded))
            encoded = encode(Message(Kind.IN_FILE, number))
        self._unsent.append((encoded, own))
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            encoded, fds = self._unsent[0]
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
            try:
                self._sock.sendmsg([encoded], control)
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._flush)
                return
            except OSError:
                self._lose()
                return
            self._unsent.popleft()
            _close_all(fds)
        self._loop.remove_writer(self._sock.fileno())

    def _read(self) -> None:
        while self.is_open:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(_ANSWER_MAX_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                data, ancillary = b"", []
            if not data:
                self._lose()
                return
            self._deliver(_take_apart(data, ancillary))

    def _deliver(self, answer: Answer) -> None:
        future, on_done = self._waiting.pop(answer.message.id, (None, None))
        if future is None:
            self._on_event(answer)
            return
        if on_done and answer.message.kind is not Kind.FAILED:
            on_done(answer)
        if future.done():
            if answer.fd >= 0:
                os.close(answer.fd)
        elif answer.message.kind is Kind.FAILED:
            future.set_exception(read_refusal(answer.message))
            future.exception()
        else:
            future.set_result(answer)

    def _lose(self) -> None:
        self.close()
        self._on_lost()


def read_refusal(message: Message) -> Refused:
    """Make the exception of a FAILED message."""
    step = message.fields[0].decode(errors="replace") if message.fields else "do what was asked"
    return Refused(step, message.number(0))


def _take_apart(data: bytes, ancillary: list[tuple[int, int, bytes]]) -> Answer:
    fd, pid = -1, 0
    for _, kind, value in ancillary:
        if kind == socket.SCM_RIGHTS:
            (fd,) = struct.unpack_from("i", value)
        elif kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack_from(value)[0]
    return Answer(decode(data), fd, pid)


def _write_file(data: bytes) -> int:
    """Write to a file without a name, and give its descriptor."""
    try:
        fd = os.memfd_create("message")
    except (AttributeError, OSError):  # Not every build of Python has it.
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    return fd


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
