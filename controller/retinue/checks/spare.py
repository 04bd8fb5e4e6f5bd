"""One child of the warm parent: idle as a spare, then the one conversation it ever has.

Whatever it sends is hostile from the moment it has the response. It is killed from
outside by its pidfd; nobody here waits for it to die.
"""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable
from typing import TypeVar

from retinue.checks.judgement import Closing
from retinue.checks.records import CheckRequest, Ended, Judge, Judged, Limits, Prepare, Prepared, Seal
from retinue.checks.tree import read_pid
from retinue.terms.record import DecodeError, from_json, to_json

LENGTH_BYTES = 4
ESCAPED = 6
"""One character of a reason may be six bytes of JSON."""
ENVELOPE_BYTES = 1024
READ_BYTES = 64 * 1024
SETTLE_S = 1.0
"""How long a child that closed its socket may take to end, and the warm parent to say how."""

Answer = TypeVar("Answer", Prepared, Judged)


class Child:
    """A process that waits for its one check, or is doing it."""

    def __init__(self, number: int, sock: socket.socket, pidfd: int, say_slow: Callable[[], None]) -> None:
        sock.setblocking(False)
        self.number = number
        self.say_slow = say_slow
        """Tells its warm parent that its check yields to fresh ones from now on."""
        self.pid = read_pid(pidfd)
        """As our /proc names it; 0 when it cannot be seen."""
        self.fate: asyncio.Future[Ended | None] = asyncio.get_running_loop().create_future()
        """How it ended; None: its warm parent was lost first."""
        self.closing: Closing | None = None
        """Why the conversation ended; the first cause stays."""
        self.detail = ""
        self._sock = sock
        self._pidfd = pidfd
        self._received = b""

    @property
    def is_over(self) -> bool:
        return self.fate.done()

    async def prepare(self, request: CheckRequest, limits: Limits) -> Prepared | None:
        """Hand over gold and arguments; None when the conversation ended instead."""
        nonce = secrets.token_hex(16)
        first = Prepare(nonce=nonce, verifier=request.verifier, gold=request.gold, args=request.args, limits=limits)
        await self._send(_frame(to_json(first)))
        prepared = await self._receive(Prepared, limits)
        if prepared is not None and prepared.nonce != nonce:
            self.kill(Closing.VIOLATION, "an answer to another question")
            return None
        return prepared

    async def judge(self, response: str, limits: Limits) -> Judged | None:
        """Hand over the response; None when the conversation ended instead of bringing a true result.

        The first that comes is the only one: nobody reads on.
        The seal lies unread in the socket until the check has returned: what is sent before cannot carry it.
        """
        seal = secrets.token_hex(16)
        await self._send(_frame(to_json(Judge(response))) + _frame(to_json(Seal(seal))))
        judged = await self._receive(Judged, limits)
        if judged is None:
            return None
        if not secrets.compare_digest(judged.nonce.encode(), seal.encode()):
            self.kill(Closing.VIOLATION, "a result without the seal")
            return None
        self.closing = self.closing or Closing.RESULT
        return judged if self.closing is Closing.RESULT else None

    def kill(self, closing: Closing, detail: str = "") -> None:
        """End it and the conversation now; who waits for its answer is told so."""
        if self.closing is None:
            self.closing, self.detail = closing, detail
        self._signal_kill()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # The other side is gone already.
            pass

    async def settle(self) -> Ended | None:
        """Wait for a child that went silent to end, so that its end can be explained."""
        if self.closing is None:
            await asyncio.wait([self.fate], timeout=SETTLE_S)
        if self.closing is None and self.fate.done():
            self.closing = Closing.WARM_LOST if self.fate.result() is None else Closing.GONE
        if self.closing is None:
            self.kill(Closing.VIOLATION, "it closed its end and went on")
        return self.fate.result() if self.fate.done() else None

    def close(self) -> None:
        """Let go of it: killed if it still runs, its descriptors closed."""
        if self._pidfd < 0:
            return
        self._signal_kill()
        self._sock.close()
        os.close(self._pidfd)
        self._pidfd = -1

    def _signal_kill(self) -> None:
        if self._pidfd < 0 or self.is_over:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def _send(self, frame: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._sock, frame)
        except OSError:  # It ended, or was killed; the read that follows finds out.
            pass

    async def _receive(self, kind: type[Answer], limits: Limits) -> Answer | None:
        body = await self._receive_frame(limits.output_bytes * ESCAPED + ENVELOPE_BYTES)
        if body is None:
            return None
        try:
            return from_json(body, kind)
        except (DecodeError, RecursionError) as error:
            self.kill(Closing.VIOLATION, f"an unreadable answer ({error})"[:200])
            return None

    async def _receive_frame(self, limit: int) -> bytes | None:
        head = await self._read(LENGTH_BYTES)
        if head is None:
            return None
        size = int.from_bytes(head, "big")
        if size > limit:
            self.kill(Closing.VIOLATION, f"an answer of {size} bytes, of {limit} at most")
            return None
        return await self._read(size)

    async def _read(self, count: int) -> bytes | None:
        loop = asyncio.get_running_loop()
        while len(self._received) < count:
            try:
                part = await loop.sock_recv(self._sock, READ_BYTES)
            except OSError:  # Reset: it ended with something of ours unread.
                part = b""
            if not part:
                return None
            self._received += part
        taken, self._received = self._received[:count], self._received[count:]
        return taken


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
