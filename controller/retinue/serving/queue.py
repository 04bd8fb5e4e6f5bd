"""Whose check is next: round-robin between callers, first in first out for each. Pure.

Bounded in items and in bytes. Refuses rather than grows; never drops what it took.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Checks that wait, by caller.

    Units:  `limit` items; `limit_bytes` of what they weigh together.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._callers: OrderedDict[str, OrderedDict[Item, int]] = OrderedDict()
        """Caller -> item -> weight; the first caller is the next to be served."""
        self._count = 0
        self._weight_bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def callers_count(self) -> int:
        return len(self._callers)

    def has_room(self, count: int, weight_bytes: int) -> bool:
        """Say whether so much can be taken now; a batch asks once for all of it.

        An empty queue takes any weight: what one request may weigh is bounded elsewhere.
        """
        fits = self._weight_bytes + weight_bytes <= self._limit_bytes or not self._count
        return self._count + count <= self._limit and fits

    def put(self, caller: str, item: Item, weight_bytes: int = 0) -> None:
        """Add one item at the end of its caller's line; a new caller is served after all who wait.

        Errors: none; whoever puts has asked `has_room`.
        """
        self._callers.setdefault(caller, OrderedDict())[item] = weight_bytes
        self._count += 1
        self._weight_bytes += weight_bytes

    def pop(self) -> Item | None:
        """Take the next item; its caller goes behind the others. None when nothing waits."""
        if not self._callers:
            return None
        caller, line = next(iter(self._callers.items()))
        item = next(iter(line))
        self._take(caller, line, item)
        if caller in self._callers:
            self._callers.move_to_end(caller)
        return item

    def remove(self, caller: str, item: Item) -> bool:
        """Drop one item that is no longer wanted; False when it does not wait here."""
        line = self._callers.get(caller)
        if line is None or item not in line:
            return False
        self._take(caller, line, item)
        return True

    def take_where(self, is_due: Callable[[Item], bool]) -> list[Item]:
        """Take every item of which this is true, in no caller's turn."""
        due = [(caller, item) for caller, line in self._callers.items() for item in line if is_due(item)]
        for caller, item in due:
            self.remove(caller, item)
        return [item for _, item in due]

    def _take(self, caller: str, line: OrderedDict[Item, int], item: Item) -> None:
        self._weight_bytes -= line.pop(item)
        self._count -= 1
        if not line:
            del self._callers[caller]
