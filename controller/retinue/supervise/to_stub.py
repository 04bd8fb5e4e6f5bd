"""The controller's end of the stub's socketpair: JSON lines out, happenings in."""

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

from retinue.errors import NotReadyError
from retinue.supervise.ending import Cause
from retinue.supervise.happenings import (
    ChildSeen,
    Happening,
    LaunchExited,
    LaunchSaid,
    NodeReported,
    StopSignal,
    StubGone,
    StubHello,
    TrainerExited,
    TrainerRefused,
    TrainerStarted,
)

LINE_BYTES = 4 * 1024 * 1024
BEAT_S = 2.0


def parse_stub_line(line: bytes) -> Happening | None:
    """Turn one line of the stub into a happening; None for what the run does not act on."""
    said: dict[str, Any] = json.loads(line)
    match said["ev"]:
        case "hello":
            return StubHello(
                starts=said["starts"],
                launch=_parse_child(said.get("launch")),
                trainer=_parse_child(said.get("trainer")),
                stops=tuple(said.get("stops", ())),
                nodes=said.get("nodes", {}),
            )
        case "launch_exited" | "launch_refused":
            return LaunchExited(said.get("code", said.get("exit_code")), said.get("signal"), said.get("cause", ""))
        case "trainer_started":
            return TrainerStarted(said["pid"])
        case "trainer_refused":
            return TrainerRefused(said["errno"], said["cause"])
        case "trainer_exited":
            return TrainerExited(said.get("code"), said.get("signal"))
        case "stop":
            return StopSignal(said["signal"], said["count"], said.get("from_terminal", False))
        case "launch_said":
            return LaunchSaid(said["line"])
        case "node":
            return NodeReported(said["report"]["retinue_node"], said["report"])
        case _:
            return None


def _parse_child(said: dict[str, Any] | None) -> ChildSeen | None:
    if said is None:
        return None
    return ChildSeen(
        pid=said["pid"],
        is_running=said["is_running"],
        is_started=said["is_started"],
        code=said["code"],
        signal=said["signal"],
        errno=said["errno"] or None,
        cause=said["cause"],
    )


class StubLink:
    """Implements `edges.Stub`."""

    def __init__(self, sock: socket.socket, post: Callable[[Happening], None]) -> None:
        self._sock = sock
        self._post = post
        self._writer: asyncio.StreamWriter | None = None
        self.is_gone = False

    async def run(self) -> None:
        """Read until the stub is gone; beats go out meanwhile."""
        reader, self._writer = await asyncio.open_connection(sock=self._sock, limit=LINE_BYTES)
        self._writer.transport.set_write_buffer_limits(high=0)
        beats = asyncio.create_task(self._beat())
        try:
            while line := await reader.readline():
                happening = parse_stub_line(line)
                if happening is not None:
                    self._post(happening)
        except ConnectionError:
            pass
        finally:
            beats.cancel()
        self.is_gone = True
        self._post(StubGone())

    async def _beat(self) -> None:
        while True:
            self.order({"op": "beat"})
            await asyncio.sleep(BEAT_S)

    def order(self, order: dict[str, Any]) -> None:
        if self._writer is not None and not self.is_gone:
            self._writer.write(json.dumps(order).encode() + b"\n")

    async def drain(self) -> None:
        """Wait until the stub has been handed everything."""
        if self._writer is not None and not self.is_gone:
            try:
                await self._writer.drain()
            except ConnectionError:
                self.is_gone = True


def refuse_start(stub: socket.socket, cause: str) -> None:
    """Tell the stub that this run cannot begin, so that it starts no other controller; nothing has been started."""
    verdict = {"ended_by": Cause.NOT_READY.value, "cause": cause}
    orders = ({"op": "say", "text": cause}, {"op": "finish", "exit_code": NotReadyError.exit_code, "verdict": verdict})
    stub.sendall(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
