"""What the run asks of the world, as narrow Protocols beside the code that calls them.

Every method returns at once: the real ones queue work whose end is one more
happening. The simulated ones in the tests keep the same promise.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from retinue.channel.messages import FromController
from retinue.journal.egress import EgressLine
from retinue.supervise.happenings import Happening
from retinue.terms.outage import Outage


class Clock(Protocol):
    """Loop time for decisions, wall time for people."""

    def now_s(self) -> float: ...
    def now_utc(self) -> float: ...


class Timers(Protocol):
    """Named one-shot timers; setting a name again replaces it."""

    def set(self, name: str, due_s: float, happening: Happening) -> None: ...
    def cancel(self, name: str) -> None: ...


class Agents(Protocol):
    """The control channel. A message to a node that is not connected is dropped:
    the full state that an agent sends on connect repairs it."""

    def send(self, node: str, message: FromController) -> object: ...

    def expect(self, node: str) -> None:
        """Count this node's silence from now on; too much of it is one `NodeGone`."""
        ...

    def forget(self, node: str) -> None:
        """This node's silence is no news any more."""
        ...


class Stub(Protocol):
    """Orders to the stub, as its JSON lines."""

    def order(self, order: dict[str, Any]) -> None: ...


class Journal(Protocol):
    """The event journal, for people."""

    def note(
        self, subject: str, event: str, reason: str, before: str = "", after: str = "", detail: str = ""
    ) -> None: ...

    def note_outage(self, outage: Outage) -> None:
        """Write a line of the ledger: an outage begins, or is over."""
        ...

    def deny(self, line: EgressLine) -> None:
        """Write down what a service was denied, in a file of its own."""
        ...


class Store(Protocol):
    """What a restarted controller needs; written before the act it is about."""

    def save(self, key: str, value: Any) -> None: ...


class Edges(Protocol):
    """All of them, handed to the run once."""

    @property
    def clock(self) -> Clock: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def agents(self) -> Agents: ...
    @property
    def stub(self) -> Stub: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def store(self) -> Store: ...
    @property
    def gateway_ports(self) -> Sequence[int]:
        """Candidates for the gateway's port, best first."""
        ...

    @property
    def launch_order(self) -> dict[str, Any]:
        """The stub's `launch` order for this run's nodes."""
        ...

    def say(self, text: str) -> None:
        """Print a line on the run's terminal."""
        ...

    def start_trainer(self, order: dict[str, Any]) -> None:
        """Let the files that the trainer reads first be current, then hand the stub its `trainer` order."""
        ...

    def finish(self, exit_code: int) -> None:
        """The run is over: write the verdict, tell the stub, end this process."""
        ...
