"""Keeping the services up: starts by dependency, restarts of dependants, and replicas that are beyond help."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from retinue.lifecycle.order import find_hopeless, find_ready_to_start, find_restart_dependants
from retinue.plan.records import ServicePlan
from retinue.supervise.ending import Cause
from retinue.supervise.happenings import RunTimer
from retinue.supervise.state import RunPhase
from retinue.terms.replica import DependenciesReady, LaunchRefused, OnExhausted, Phase, RestartAsked

if TYPE_CHECKING:
    from retinue.supervise.run import Run

STARTS_AT_ONCE = 100
"""Launches decided on between two happenings: about 15 ms."""


class Upkeep:
    """The half of a run that is about its services, while nothing stops them."""

    def __init__(self, run: "Run") -> None:
        self.run = run
        self._failed_any = False
        """Some replica will not be tried again: others may be waiting for it in vain."""

    def advance(self) -> None:
        """Start what may start, restart what asked for it, and face what will not be tried again."""
        run = self.run
        if run.fleet.take_new_phases() and any(map(self._may_start, run.fleet.counts.pending)):
            self._start_some(find_ready_to_start(run.plan.services, run.fleet.replicas))
        while run.fleet.launched_again:
            self._restart_dependants(run.fleet.launched_again.popleft())
        while run.fleet.exhausted:
            self._take_exhausted(*run.fleet.exhausted.popleft())
        if self._failed_any:
            self._failed_any = False
            self._give_up_hopeless()

    def _start_some(self, keys: Sequence[str]) -> None:
        """Start replicas, of very many only some: the rest follows when what happened meanwhile is dealt with."""
        run = self.run
        for key in keys[:STARTS_AT_ONCE]:
            run.fleet.apply(key, DependenciesReady(incarnation=run.fleet.replicas[key].incarnation))
        if keys:
            run.edges.timers.set("start", run.edges.clock.now_s(), RunTimer("start"))

    def _may_start(self, service: str) -> bool:
        """Say whether it is worth asking which replicas of a service may start: no, while it waits for a count."""
        run = self.run
        return all(
            self._is_ready(run.fleet.services[edge.service])
            for edge in run.fleet.services[service].depends_on
            if edge.condition == "ready" and edge.is_required
        )

    def _give_up_hopeless(self) -> None:
        """Before the trainer runs, what can never start ends the run; later it is failed for good, by name."""
        run = self.run
        for key, why in find_hopeless(run.plan.services, run.fleet.replicas).items():
            if run.state.phase is RunPhase.STARTING:
                run.teardown.begin(Cause.NOT_READY, f"{key} can never start: {why}")
                return
            number = run.fleet.replicas[key].incarnation
            run.fleet.apply(key, LaunchRefused(number, why, retryable=False))

    def _restart_dependants(self, service: str) -> None:
        run = self.run
        for name in find_restart_dependants(service, run.plan.services):
            for seat in run.fleet.of_service(name):
                if seat.replica.phase in (Phase.STARTING, Phase.READY, Phase.UNREADY):
                    run.fleet.apply(
                        seat.replica.id,
                        RestartAsked(seat.replica.incarnation, f"its dependency {service} was started again"),
                    )

    def _take_exhausted(self, key: str, why: str) -> None:
        run = self.run
        service = run.fleet.services[run.fleet.seats[key].place.service]
        self._failed_any = True
        able = sum(seat.replica.phase is not Phase.FAILED for seat in run.fleet.of_service(service.name))
        words = run.fleet.seats[key].last_lines.strip().splitlines()
        text = f"{key} will not be tried again: {why}" + (f"; its last words: {words[-1][:200]}" if words else "")
        if service.on_exhausted is OnExhausted.HOLD:
            due_s = run.edges.clock.now_s() + run.plan.hold_s
            run.edges.timers.set(f"hold:{service.name}", due_s, RunTimer(f"hold:{service.name}"))
        elif service.on_exhausted is OnExhausted.FAIL_RUN and run.state.phase is RunPhase.RUNNING:
            run.teardown.begin(Cause.FAIL_RUN, text)
        elif run.state.phase is RunPhase.STARTING and able < service.min_ready:
            run.teardown.begin(Cause.NOT_READY, text)

    def _is_ready(self, service: ServicePlan) -> bool:
        run = self.run
        return run.fleet.ready_count[service.name] >= service.min_ready

    def are_all_ready(self) -> bool:
        """Say whether every service has what `min_ready` asks for."""
        return all(map(self._is_ready, self.run.plan.services))

    def take_hold_end(self, service: str) -> None:
        """The time for an operator to bring a held service back is over."""
        run = self.run
        if not self._is_ready(run.fleet.services[service]):
            run.teardown.begin(
                Cause.FAIL_RUN, f"{service} was not brought back within run.hold ({run.plan.hold_s:g} s)"
            )
