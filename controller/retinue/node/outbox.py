"""What an agent says to its controller, so that nothing it says is lost between two connections.

A connection begins with the full state (Hello). What happens before the state is built is
in it; what happens after it, and before the controller answers, waits here.
"""

from typing import Protocol

from retinue.channel.messages import FromAgent, NodeNote, Report


class Link(Protocol):
    """The control channel."""

    @property
    def lost_since_s(self) -> float | None: ...
    def send(self, message: FromAgent) -> bool: ...


class Outbox:
    """Sends, or keeps the newest of each kind until there is a controller again."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._kept: dict[tuple[str, ...], FromAgent] = {}

    def attach(self, link: Link) -> None:
        """Use this link from now on."""
        self._link = link

    def say(self, message: FromAgent) -> None:
        """Send it now, or when the controller is back."""
        if self._link is not None and self._link.send(message):
            return
        key = _name(message)
        # The newest word goes to the end: StartupPassed before ReadinessChanged, as it happened.
        self._kept.pop(key, None)
        self._kept[key] = message

    def say_now(self, message: FromAgent) -> None:
        """Send it now or never: facts that are stale by the time a controller is back."""
        if self._link is not None:
            self._link.send(message)

    def forget(self) -> None:
        """Drop what is kept about replicas: the full state that is being built says it."""
        self._kept = {key: message for key, message in self._kept.items() if not isinstance(message, Report)}

    def flush(self) -> None:
        """Send what was kept since the full state was built."""
        kept, self._kept = self._kept, {}
        for message in kept.values():
            self.say(message)


def _name(message: FromAgent) -> tuple[str, ...]:
    if isinstance(message, Report):
        incarnation = getattr(message.event, "incarnation", 0)
        return message.replica, str(incarnation), type(message.event).__name__
    if isinstance(message, NodeNote):
        return type(message).__name__, message.what
    return (type(message).__name__,)
