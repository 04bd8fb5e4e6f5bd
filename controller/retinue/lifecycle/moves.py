"""The moves a replica can make: each one gives the next replica and the actions that belong to it.

A move takes every flag of the phase it leaves with it, so nothing is remembered by
accident; it withdraws what was published and cancels what was armed. Never looks at events.
"""

from typing import Any

from retinue.lifecycle.budget import compute_wait_s, is_spent
from retinue.terms.record import replace
from retinue.terms.replica import (
    AnyAction,
    CancelTimer,
    Decision,
    Exhausted,
    Launch,
    Phase,
    PlaceAgain,
    Publish,
    Replica,
    SetTimer,
    Stop,
    Withdraw,
)

STOP_ANSWER_S = 10.0
"""Beyond the grace, for SIGKILL, the sweep of escapees and the way back; then its agent is not waited for."""


def keep(replica: Replica, reason: str, *actions: AnyAction) -> Decision:
    """Stay in the phase."""
    return Decision(replica, actions, reason)


def find_timers(replica: Replica) -> tuple[str, ...]:
    """Find the timers that may be armed; in a terminal phase none is."""
    match replica.phase:
        case Phase.STARTING if replica.is_started and not replica.is_startup_passed:
            return ("startup",)
        case Phase.READY:
            return ("stable",)
        case Phase.STOPPING:
            return ("stop",)
        case Phase.BACKOFF:
            return ("backoff",)
        case _:
            return ()


def launch(replica: Replica, now_s: float, reason: str) -> Decision:
    """Begin the next incarnation."""
    number = replica.incarnation + 1
    restarts = replica.restarts + (1 if replica.incarnation else 0)
    after = _enter(replica, Phase.STARTING, now_s, reason, incarnation=number, restarts=restarts)
    return Decision(after, (*_leave(replica), Launch(number)), reason)


def publish(replica: Replica, now_s: float, reason: str) -> Decision:
    """Send callers here, and begin to count towards forgiveness."""
    after = _enter(replica, Phase.READY, now_s, reason, is_started=True, is_startup_passed=True)
    number = replica.incarnation
    stable = SetTimer(number, "stable", replica.policy.restart.stable_for_s)
    return Decision(after, (*_leave(replica), Publish(number), stable), reason)


def withdraw(replica: Replica, now_s: float, reason: str) -> Decision:
    """Send callers elsewhere; the incarnation runs on."""
    after = _enter(replica, Phase.UNREADY, now_s, reason, is_started=True, is_startup_passed=True)
    return Decision(after, _leave(replica), reason)


def stop(replica: Replica, grace_s: float, now_s: float, reason: str) -> Decision:
    """End the incarnation for good, within this grace."""
    return _stop(replica, grace_s, now_s, reason)


def stop_to_relaunch(replica: Replica, now_s: float, reason: str, *, is_failure: bool) -> Decision:
    """End the incarnation so that the next one can begin."""
    grace_s = replica.policy.stop.grace_s
    return _stop(replica, grace_s, now_s, reason, wants_relaunch=True, is_failure=is_failure)


def stop_sooner(replica: Replica, grace_s: float, now_s: float, reason: str) -> Decision:
    """Repeat the stop with a grace that ends before the one that is running."""
    return Decision(replace(replica, kill_at_s=now_s + grace_s), _build_stop(replica, grace_s, reason), reason)


def end(replica: Replica, now_s: float, reason: str, *, is_completed: bool = False) -> Decision:
    """Rest in `stopped`; nothing of the replica runs."""
    after = _enter(replica, Phase.STOPPED, now_s, reason, is_completed=is_completed)
    return Decision(after, _leave(replica), reason)


def fail(replica: Replica, now_s: float, reason: str, *, is_exhausted: bool = False) -> Decision:
    """Rest in `failed`, and let the run say what that means."""
    after = _enter(replica, Phase.FAILED, now_s, reason, is_exhausted=is_exhausted)
    return Decision(after, (*_leave(replica), Exhausted(replica.policy.restart.on_exhausted)), reason)


def count_failure(replica: Replica, now_s: float, cause: str) -> Decision:
    """Charge a failure to the budget: wait and launch again, or give up."""
    policy, failures = replica.policy.restart, replica.failures + 1
    counted = replace(replica, failures=failures)
    if is_spent(policy, failures):
        allowed = f"{policy.limit} allowed since the last stable period"
        return fail(counted, now_s, f"{cause}; failure {failures}, {allowed}: given up", is_exhausted=True)
    wait_s = compute_wait_s(policy, failures, replica.id, replica.incarnation)
    reason = f"{cause}; failure {failures} of {policy.limit} allowed, next launch in {wait_s:.1f} s"
    after = _enter(counted, Phase.BACKOFF, now_s, reason)
    return Decision(after, (*_leave(replica), SetTimer(replica.incarnation, "backoff", wait_s)), reason)


def wait_for_place(replica: Replica, now_s: float, reason: str) -> Decision:
    """Go back to `pending` until another node is found."""
    after = _enter(replica, Phase.PENDING, now_s, reason)
    return Decision(after, (*_leave(replica), PlaceAgain(replica.incarnation)), reason)


def wait_for_dependencies(replica: Replica, now_s: float, reason: str) -> Decision:
    """Go back to `pending`: it was never launched, so what it waits for was never there."""
    return Decision(_enter(replica, Phase.PENDING, now_s, reason), _leave(replica), reason)


def _enter(replica: Replica, phase: Phase, now_s: float, reason: str, **changes: Any) -> Replica:
    """Build the replica in its next phase: counters stay, flags are as given or unset."""
    bare = Replica(
        id=replica.id,
        policy=replica.policy,
        phase=phase,
        incarnation=replica.incarnation,
        failures=replica.failures,
        restarts=replica.restarts,
        since_s=now_s,
        reason=reason,
    )
    return replace(bare, **changes)


def cancel_timers(replica: Replica) -> tuple[CancelTimer, ...]:
    """Build what disarms every timer that may be armed now."""
    return tuple(CancelTimer(name) for name in find_timers(replica))


def _leave(replica: Replica) -> tuple[AnyAction, ...]:
    """Build what ends with the phase: the published endpoint and the armed timers."""
    withdrawn = (Withdraw(replica.incarnation),) if replica.phase is Phase.READY else ()
    return (*withdrawn, *cancel_timers(replica))


def _stop(replica: Replica, grace_s: float, now_s: float, reason: str, **flags: bool) -> Decision:
    after = _enter(
        replica,
        Phase.STOPPING,
        now_s,
        reason,
        is_started=replica.is_started,
        is_startup_passed=replica.is_startup_passed,
        kill_at_s=now_s + grace_s,
        **flags,
    )
    return Decision(after, (*_leave(replica), *_build_stop(replica, grace_s, reason)), reason)


def _build_stop(replica: Replica, grace_s: float, reason: str) -> tuple[AnyAction, ...]:
    number = replica.incarnation
    return (
        Stop(number, replica.policy.stop.signal, grace_s, reason),
        SetTimer(number, "stop", grace_s + STOP_ANSWER_S),
    )
