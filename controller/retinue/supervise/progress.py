"""What is waited for, said on the terminal while a run starts: nobody should have to guess."""

from typing import TYPE_CHECKING

from retinue.allocation.nodelist import compress_nodelist
from retinue.supervise.state import RunPhase

if TYPE_CHECKING:
    from retinue.supervise.run import Run

FIRST_S = 5.0
"""A start that is faster than this needs no words."""
PERIOD_S = 10.0
HINT_S = 60.0
"""From here on a service that nothing limits is told how to limit it."""
NODES_NAMED = 64
NAMED = 3
"""Services that one line names."""


class Progress:
    """Says a line now and then until the trainer starts."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._since_s = run.edges.clock.now_s()
        self._due_s = self._since_s + FIRST_S

    def take_tick(self) -> None:
        """Say what is waited for, when it is time."""
        run = self._run
        now_s = run.edges.clock.now_s()
        if run.state.ending is not None or run.state.phase not in (RunPhase.JOINING, RunPhase.STARTING):
            return
        if now_s < self._due_s:
            return
        self._due_s = now_s + PERIOD_S
        waits = self._describe_nodes() if run.state.phase is RunPhase.JOINING else self._describe_services(now_s)
        if waits:
            run.edges.say(f"waiting for {waits} ({now_s - self._since_s:.0f} s)")

    def _describe_nodes(self) -> str:
        missing = self._run.nodes.missing()
        if not missing:
            return ""
        more = f" and {len(missing) - NODES_NAMED} more" if len(missing) > NODES_NAMED else ""
        names = compress_nodelist(missing[:NODES_NAMED])
        return f"{len(missing)} of {len(self._run.nodes.views)} nodes to join: {names}{more}"

    def _describe_services(self, now_s: float) -> str:
        run = self._run
        unready = [s for s in run.plan.services if run.fleet.ready_count[s.name] < s.min_ready]
        parts = [self._describe_service(service.name, now_s) for service in unready[:NAMED]]
        more = f" and {len(unready) - NAMED} more services" if len(unready) > NAMED else ""
        return "; ".join(parts) + more

    def _describe_service(self, name: str, now_s: float) -> str:
        run = self._run
        service = run.fleet.services[name]
        text = f"{name} {run.fleet.ready_count[name]}/{service.min_ready}"
        seat = next((seat for seat in run.fleet.of_service(name) if not seat.replica.is_there), None)
        if seat is None:
            return text
        text += f": {seat.replica.id} {seat.replica.phase.value}: {run.describe_reason(seat)}"
        is_limited = seat.replica.policy.startup_budget_s is not None
        if not is_limited and now_s - self._since_s > HINT_S:
            text += "; nothing limits this wait: set probes.startup with a budget"
        return text
