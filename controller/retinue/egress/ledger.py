"""What was denied, counted by destination. A service that tries without end costs a number, not a line each."""

from dataclasses import dataclass

from retinue.terms.egress import Denied

TCP, UDP, PROBE = "tcp", "udp", "udp-connect"
"""PROBE: a datagram socket was connected, which sends nothing: that is how programs find their own address."""
UDP_SOCKET, OTHER_SOCKET, UNREADABLE = "udp-socket", "other-socket", "unreadable"
MORE = "more"
"""Everything beyond DESTINATIONS_MAX of one replica."""
DESTINATIONS_MAX = 256


@dataclass(slots=True)
class _Count:
    first_utc: float
    last_utc: float
    pid: int
    program: str
    count: int = 0


class Ledger:
    """Counts for any number of replicas."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str, int], _Count] = {}
        self._sizes: dict[str, int] = {}
        self._changed: dict[tuple[str, str, str, int], None] = {}

    def add(self, line: Denied) -> bool:
        """Add a line's count; True when it is the first of its key."""
        key = line.key
        if key not in self._counts and self._sizes.get(line.replica, 0) >= DESTINATIONS_MAX:
            key = (line.replica, MORE, "", 0)
        is_first = key not in self._counts
        if is_first:
            self._counts[key] = _Count(line.first_utc, line.last_utc, line.pid, line.program)
            self._sizes[line.replica] = self._sizes.get(line.replica, 0) + 1
        found = self._counts[key]
        found.count += line.count
        found.last_utc = max(found.last_utc, line.last_utc)
        self._changed[key] = None
        return is_first

    def take_changed(self, most: int) -> list[Denied]:
        """Take lines that changed since they were last taken, with their counts so far."""
        keys = list(self._changed)[:most]
        for key in keys:
            del self._changed[key]
        return [self._build(key) for key in keys]

    def put_back(self, lines: list[Denied]) -> None:
        """Have these lines taken again: nobody heard them."""
        self._changed.update(dict.fromkeys(line.key for line in lines))

    def list_all(self) -> list[Denied]:
        return [self._build(key) for key in self._counts]

    def clear(self) -> None:
        """Begin again from nothing."""
        self._counts.clear()
        self._sizes.clear()
        self._changed.clear()

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def _build(self, key: tuple[str, str, str, int]) -> Denied:
        found = self._counts[key]
        return Denied(*key, found.count, found.first_utc, found.last_utc, found.pid, found.program)
