"""The one decision function: what an event means for a replica.

`decide` answers every event in every phase and never raises; when nothing changes
it says why. It never awaits, reads no clock, and knows nothing of other replicas.
"""

from retinue.lifecycle import moves
from retinue.lifecycle.moves import keep
from retinue.lifecycle.words import describe_exit, describe_stale
from retinue.terms.record import replace
from retinue.terms.replica import (
    AnyEvent,
    Decision,
    DependenciesReady,
    Exited,
    LaunchRefused,
    LivenessLost,
    NodeLost,
    Phase,
    PlaceAgain,
    ReadinessChanged,
    Replica,
    RestartAsked,
    SetTimer,
    Started,
    StartupLost,
    StartupPassed,
    StopAsked,
    TimerFired,
)

_RUNNING = (Phase.STARTING, Phase.READY, Phase.UNREADY)
"""An incarnation is there, or on its way, and is meant to stay."""

_STABLE_SLACK = 0.01
"""Fraction of stable_for_s by which its timer may be early; an event loop rounds."""


def decide(replica: Replica, event: AnyEvent, now_s: float) -> Decision:
    """Decide what one event changes.

    Shape:  the next replica, the actions in the order they are to be carried out, the reason.
    Units:  now_s seconds on the loop clock.
    Source: docs/architecture-lifecycle.md is generated from this function.
    """
    if not isinstance(event, StopAsked) and event.incarnation != replica.incarnation:
        return keep(replica, describe_stale(event, replica.incarnation))
    match event:
        case DependenciesReady():
            return _on_dependencies_ready(replica, now_s)
        case Started():
            return _on_started(replica, now_s)
        case LaunchRefused():
            return _on_launch_refused(replica, event, now_s)
        case StartupPassed():
            return _on_startup_passed(replica, now_s)
        case StartupLost():
            return _on_startup_lost(replica, event, now_s)
        case ReadinessChanged():
            return _on_readiness_changed(replica, event, now_s)
        case LivenessLost():
            return _on_liveness_lost(replica, event, now_s)
        case Exited():
            return _on_exited(replica, event, now_s)
        case TimerFired():
            return _on_timer_fired(replica, event, now_s)
        case StopAsked():
            return _on_stop_asked(replica, event, now_s)
        case RestartAsked():
            return _on_restart_asked(replica, event, now_s)
        case NodeLost():
            return _on_node_lost(replica, event, now_s)


def _on_dependencies_ready(replica: Replica, now_s: float) -> Decision:
    if replica.phase is not Phase.PENDING:
        return keep(replica, f"no effect: {replica.phase.value}, it waits for no dependency")
    is_first = replica.incarnation == 0
    return moves.launch(replica, now_s, "its dependencies are there" if is_first else "placed on another node")


def _on_started(replica: Replica, now_s: float) -> Decision:
    if replica.is_started:
        return keep(replica, "no effect: it was started already")
    if replica.phase is Phase.STOPPING:
        return keep(replace(replica, is_started=True), "started while it is being stopped; the stop goes on")
    if replica.phase is not Phase.STARTING:
        return keep(replica, f"no effect: {replica.phase.value}, nothing of it was being started")
    policy = replica.policy
    if policy.startup_budget_s is not None:
        timer = SetTimer(replica.incarnation, "startup", policy.startup_budget_s)
        return keep(replace(replica, is_started=True), "started; its startup probe gates the others", timer)
    if not policy.has_readiness:
        return moves.publish(replica, now_s, "started, and it has no probe to wait for")
    return keep(replace(replica, is_started=True, is_startup_passed=True), "started; waits for its readiness probe")


def _on_launch_refused(replica: Replica, event: LaunchRefused, now_s: float) -> Decision:
    cause = f"cannot be launched: {event.cause}"
    if replica.phase is Phase.STOPPING:
        return _follow_stop(replica, cause, now_s)
    if replica.phase is Phase.PENDING and event.retryable:
        return keep(replica, f"no effect: {event.cause}; nothing was launched, it still waits")
    if replica.phase is not Phase.PENDING and replica.phase not in _RUNNING:
        return keep(replica, f"no effect: {replica.phase.value}, nothing of it was being launched")
    if not event.retryable:
        return moves.fail(replica, now_s, f"{cause}; trying again will not help")
    return moves.count_failure(replica, now_s, cause)


def _on_startup_passed(replica: Replica, now_s: float) -> Decision:
    if replica.is_startup_passed:
        return keep(replica, "no effect: its startup was passed already")
    if replica.phase is not Phase.STARTING or not replica.is_started:
        return keep(replica, f"no effect: {replica.phase.value}, no startup probe is being asked")
    if not replica.policy.has_readiness:
        return moves.publish(replica, now_s, "startup probe passed, and it has no readiness probe")
    passed = replace(replica, is_startup_passed=True)
    return keep(passed, "startup probe passed; waits for its readiness probe", *moves.cancel_timers(replica))


def _on_startup_lost(replica: Replica, event: StartupLost, now_s: float) -> Decision:
    if replica.phase is not Phase.STARTING or not replica.is_started or replica.is_startup_passed:
        return keep(replica, f"no effect: {replica.phase.value}, no startup probe is being asked")
    cause = f": {event.cause}" if event.cause else ""
    return moves.stop_to_relaunch(replica, now_s, f"its start was given up{cause}", is_failure=True)


def _on_readiness_changed(replica: Replica, event: ReadinessChanged, now_s: float) -> Decision:
    if replica.phase not in _RUNNING:
        return keep(replica, f"no effect: {replica.phase.value}, readiness does not count")
    if not replica.policy.has_readiness:
        return keep(replica, "no effect: it has no readiness probe")
    if not replica.is_startup_passed:
        return keep(replica, "no effect: readiness does not count before startup has passed")
    cause = f": {event.cause}" if event.cause else ""
    is_published = replica.phase is Phase.READY
    if event.is_ready == is_published or (replica.phase is Phase.STARTING and not event.is_ready):
        return keep(replica, f"no effect: it is {'ready' if is_published else 'not ready'} already{cause}")
    if event.is_ready:
        return moves.publish(replica, now_s, f"ready{cause}")
    return moves.withdraw(replica, now_s, f"not ready{cause}")


def _on_liveness_lost(replica: Replica, event: LivenessLost, now_s: float) -> Decision:
    if replica.phase not in _RUNNING:
        return keep(replica, f"no effect: {replica.phase.value}, liveness does not count")
    if not replica.is_startup_passed:
        return keep(replica, "no effect: liveness does not count before startup has passed")
    cause = f": {event.cause}" if event.cause else ""
    return moves.stop_to_relaunch(replica, now_s, f"liveness lost{cause}", is_failure=True)


def _on_exited(replica: Replica, event: Exited, now_s: float) -> Decision:
    cause = describe_exit(event)
    if replica.phase in _RUNNING:
        return _follow_own_exit(replica, event.code, cause, now_s)
    if replica.phase is not Phase.STOPPING:
        return keep(replica, f"no effect: {replica.phase.value}, its end is known; {cause}")
    if replica.is_failure and not event.was_asked:
        # It was quicker than our stop, so its exit code is its own word and counts.
        return _follow_own_exit(replica, event.code, f"{replica.reason}; {cause}", now_s)
    return _follow_stop(replica, cause, now_s)


def _follow_own_exit(replica: Replica, code: int | None, cause: str, now_s: float) -> Decision:
    restart = replica.policy.restart
    if code is not None and code in restart.success:
        return moves.end(replica, now_s, f"{cause}: completed", is_completed=True)
    if code is not None and code in restart.no_restart:
        return moves.fail(replica, now_s, f"{cause}: it asks not to be launched again")
    return moves.count_failure(replica, now_s, cause)


def _follow_stop(replica: Replica, cause: str, now_s: float) -> Decision:
    """Go where the stop was to lead, now that nothing runs."""
    reason = f"{replica.reason}; {cause}"
    if not replica.wants_relaunch:
        return moves.end(replica, now_s, reason)
    if replica.is_failure:
        return moves.count_failure(replica, now_s, reason)
    return moves.launch(replica, now_s, reason)


def _on_timer_fired(replica: Replica, event: TimerFired, now_s: float) -> Decision:
    if event.timer not in moves.find_timers(replica):
        return keep(replica, f"no effect: {replica.phase.value}, timer {event.timer!r} does not count")
    match event.timer:
        case "startup":
            budget = f"{replica.policy.startup_budget_s or 0.0:g} s"
            return moves.stop_to_relaunch(replica, now_s, f"startup probe did not pass in {budget}", is_failure=True)
        case "stable":
            return _on_stable(replica, now_s)
        case "backoff":
            return moves.launch(replica, now_s, "backoff is over")
        case _:
            return _follow_stop(replica, "its agent did not answer the stop; taken for gone", now_s)


def _on_stable(replica: Replica, now_s: float) -> Decision:
    stable_for_s = replica.policy.restart.stable_for_s
    rest_s = stable_for_s - (now_s - replica.since_s)
    if rest_s > stable_for_s * _STABLE_SLACK:
        # It ran out in an earlier ready period and was still queued when that ended.
        again = SetTimer(replica.incarnation, "stable", min(rest_s, stable_for_s))
        return keep(replica, "not stable for long enough: the timer is of an earlier ready period", again)
    if replica.failures == 0:
        return keep(replica, f"ready for {stable_for_s:g} s; there was nothing to forgive")
    forgiven = f"{replica.failures} failures forgiven" if replica.failures > 1 else "1 failure forgiven"
    return keep(replace(replica, failures=0), f"ready for {stable_for_s:g} s: {forgiven}")


def _on_stop_asked(replica: Replica, event: StopAsked, now_s: float) -> Decision:
    grace_s = replica.policy.stop.grace_s
    if event.grace_s is not None:
        grace_s = max(min(grace_s, event.grace_s), 0.0)
    if replica.phase.is_terminal:
        return keep(replica, f"no effect: {replica.phase.value}, nothing of it runs")
    if replica.phase in (Phase.PENDING, Phase.BACKOFF):
        return moves.end(replica, now_s, event.reason)
    if replica.phase in _RUNNING:
        return moves.stop(replica, grace_s, now_s, event.reason)
    final = replica
    if replica.wants_relaunch:
        final = replace(replica, wants_relaunch=False, is_failure=False, reason=event.reason)
    if replica.kill_at_s is None or now_s + grace_s < replica.kill_at_s:
        return moves.stop_sooner(final, grace_s, now_s, event.reason)
    if final is replica:
        return keep(replica, "no effect: it is being stopped already, and not later than asked")
    return keep(final, f"{event.reason}; it is being stopped already and will not be launched again")


def _on_restart_asked(replica: Replica, event: RestartAsked, now_s: float) -> Decision:
    forgiven = replace(replica, failures=0)
    if replica.phase is Phase.PENDING:
        what = "a node" if replica.incarnation else "its dependencies"
        return keep(forgiven, f"{event.reason}; still waits for {what}, then it is launched")
    if replica.phase in _RUNNING:
        return moves.stop_to_relaunch(forgiven, now_s, event.reason, is_failure=False)
    if replica.phase is Phase.STOPPING:
        again = replace(forgiven, wants_relaunch=True, is_failure=False, reason=event.reason)
        return keep(again, f"{event.reason}; it is being stopped and is launched again then")
    if replica.incarnation == 0:
        return moves.wait_for_dependencies(forgiven, now_s, f"{event.reason}; it never had its dependencies")
    return moves.launch(forgiven, now_s, event.reason)


def _on_node_lost(replica: Replica, event: NodeLost, now_s: float) -> Decision:
    cause = f"node lost: {event.cause}" if event.cause else "node lost"
    if replica.phase.is_terminal:
        return keep(replica, f"no effect: {replica.phase.value}, nothing of it ran there")
    if replica.phase is Phase.STOPPING and not replica.wants_relaunch:
        return moves.end(replica, now_s, f"{replica.reason}; {cause}")
    if not replica.policy.is_movable:
        return moves.fail(replica, now_s, f"{cause}; it may not be placed elsewhere")
    reason = f"{cause}; another node is looked for"
    if replica.phase is Phase.PENDING:
        return keep(replica, reason, PlaceAgain(replica.incarnation))
    return moves.wait_for_place(replica, now_s, reason)
