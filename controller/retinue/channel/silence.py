"""Which nodes have been silent for too long. No clock of its own: the caller says what time it is.

Silence counts only while our own loop runs on time: a controller that was stopped, or starved
of CPU, has not listened, so it says nothing about nodes and starts all timers again.
"""


class Silence:
    """When each node was last heard."""

    def __init__(self, limit_s: float = 10.0, lag_limit_s: float = 1.0, period_s: float = 1.0) -> None:
        """Units: limit_s silence that means lost; lag_limit_s loop lag above which silence means nothing;
        period_s how often `find_lost` is meant to be called: a longer gap is lag too."""
        self._limit_s = limit_s
        self._lag_limit_s = lag_limit_s
        self._period_s = period_s
        self._heard_s: dict[str, float] = {}
        self._asked_s: float | None = None

    def hear(self, node: str, now_s: float) -> None:
        """Note a sign of life, or begin to expect one."""
        self._heard_s[node] = now_s

    def forget(self, node: str) -> None:
        """Expect nothing more from this node; unknown names are fine."""
        self._heard_s.pop(node, None)

    def find_lost(self, now_s: float, loop_lag_s: float) -> tuple[str, ...]:
        """Name the nodes that are lost now, each once; they are forgotten."""
        gap_s = 0.0 if self._asked_s is None else now_s - self._asked_s - self._period_s
        self._asked_s = now_s
        if max(loop_lag_s, gap_s) >= self._lag_limit_s:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
            return ()
        lost = tuple(node for node, heard_s in self._heard_s.items() if now_s - heard_s >= self._limit_s)
        for node in lost:
            del self._heard_s[node]
        return lost
