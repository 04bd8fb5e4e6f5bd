"""Stand-ins for what an agent talks to besides its keeper, and how tests wait; used by the agent tests."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from retinue.channel.messages import FromAgent, FromController, GatewayFacts, Hello, Membership, Report, Welcome
from retinue.terms.replica import AnyEvent

LIMIT_S = 30.0
T = TypeVar("T")


class FileWriter:
    """Writes at once; what the writer thread does later."""

    lost_lines = 0
    is_hung = False

    def call(self, name: str, work: Callable[[], None]) -> None:
        work()

    def append(self, path: str, data: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(data)

    def replace(self, path: str, data: bytes, mode: int) -> None:
        Path(path).write_bytes(data)

    def stuck_s(self, now_s: float) -> float:
        return 0.0

    def flush(self, timeout_s: float) -> bool:
        return True


class Controller:
    """The scripted other end of the control channel."""

    def __init__(
        self,
        build_hello: Callable[[], Hello],
        on_message: Callable[[FromController], None],
        on_change: Callable[[bool, str], None],
    ) -> None:
        self.build_hello = build_hello
        self.order = on_message
        self.on_change = on_change
        self.hellos: list[Hello] = []
        self.said: list[FromAgent] = []
        self.is_connected = False
        self.lost_since_s: float | None = asyncio.get_running_loop().time()

    def connect(self) -> Hello:
        self.hellos.append(self.build_hello())
        self.welcome()
        return self.hellos[-1]

    def welcome(self) -> None:
        self.is_connected, self.lost_since_s = True, None
        self.on_change(True, "")
        self.order(Welcome(run_id="r", attempt=0, orphan_grace_s=60.0))

    def disconnect(self) -> None:
        self.is_connected, self.lost_since_s = False, asyncio.get_running_loop().time()
        self.on_change(False, "cut by the test")

    def send(self, message: FromAgent) -> bool:
        if self.is_connected:
            self.said.append(message)
        return self.is_connected

    async def run(self) -> object:
        self.connect()
        return await asyncio.Event().wait()

    def events(self, replica: str) -> list[AnyEvent]:
        return [item.event for item in self.said if isinstance(item, Report) and item.replica == replica]


class GatewaySpy:
    """What the node's gateway is told."""

    def __init__(self, on_facts: Callable[[GatewayFacts], None]) -> None:
        self.on_facts = on_facts
        self.memberships: list[Membership] = []
        self.drops: list[tuple[str, int, str]] = []

    def publish(self, membership: Membership) -> None:
        self.memberships.append(membership)

    def tell_controller(self, is_there: bool) -> None:
        self.has_controller = is_there

    def drop(self, replica: str, incarnation: int, cause: str) -> None:
        self.drops.append((replica, incarnation, cause))

    async def run(self) -> None:
        await asyncio.Event().wait()


async def wait_for(look: Callable[[], T | None], what: str, limit_s: float = LIMIT_S) -> T:
    """Look until there is something; the condition is looked at again, never assumed after a time."""
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError(f"no {what} within {limit_s} s")
        await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A zombie is not alive."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] not in "ZX"
