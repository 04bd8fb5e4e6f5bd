"""The phase diagram, found by asking `decide`: every kind of replica against every kind of event.

Run it to write the page: `python -m retinue.lifecycle.diagram > docs/architecture-lifecycle.md`.
Nothing here is a second description of the rules; a test compares the page with this output.
"""

from retinue.lifecycle.decide import decide
from retinue.terms.record import replace
from retinue.terms.replica import (
    AnyAction,
    AnyEvent,
    CancelTimer,
    Decision,
    DependenciesReady,
    Exited,
    LaunchRefused,
    LivenessLost,
    NodeLost,
    Phase,
    Policy,
    ReadinessChanged,
    Replica,
    RestartAsked,
    RestartPolicy,
    SetTimer,
    Started,
    StartupLost,
    StartupPassed,
    StopAsked,
    TimerFired,
)

NOW_S = 1000.0

_POLICY = Policy(
    restart=RestartPolicy(limit=2, success=(0,), stable_for_s=600.0),
    startup_budget_s=1800.0,
    is_movable=True,
)

_INTRO = """\
# The life of a replica

Written by `python -m retinue.lifecycle.diagram`; do not edit. The rules are `decide` in
`controller/retinue/lifecycle/decide.py`, the words are in `controller/retinue/terms/replica.py`.

A replica in these tables has a startup and a readiness probe, exits with 0 when it is done and with 3 when it
is not to be tried again, may fail twice in a row, and may be placed on another node. Every event is about the
present incarnation: one about another incarnation changes nothing, in any phase. A replica is published exactly
in `ready`.
"""


def build_replicas(policy: Policy = _POLICY) -> dict[str, Replica]:
    """Build one replica of every kind that `decide` tells apart, keyed by what it is doing."""
    base = Replica(id="judge/0", policy=policy, incarnation=3, failures=1, restarts=2)
    started = replace(base, is_started=True)
    running = replace(started, is_startup_passed=True)
    stopping = replace(running, phase=Phase.STOPPING, reason="asked to stop", kill_at_s=NOW_S + 30.0)
    return {
        "waits for dependencies": replace(base, incarnation=0, failures=0, restarts=0),
        "waits for a node": base,
        "being launched": replace(base, phase=Phase.STARTING),
        "waits for its startup probe": replace(started, phase=Phase.STARTING),
        "waits for its readiness probe": replace(running, phase=Phase.STARTING),
        "published": replace(running, phase=Phase.READY),
        "withdrawn": replace(running, phase=Phase.UNREADY),
        "for good": stopping,
        "after a failure": replace(stopping, wants_relaunch=True, is_failure=True),
        "for a restart": replace(stopping, wants_relaunch=True),
        "waits for the next launch": replace(base, phase=Phase.BACKOFF),
        "as wanted": replace(base, phase=Phase.STOPPED),
        "given up": replace(base, phase=Phase.FAILED),
    }


def build_events(incarnation: int) -> dict[str, AnyEvent]:
    """Build one event of every kind that `decide` tells apart, keyed by its name in the tables."""
    return {
        "DependenciesReady": DependenciesReady(incarnation),
        "Started": Started(incarnation, pid=7, host_pid=4007, port=8000),
        "LaunchRefused": LaunchRefused(incarnation, "no free port"),
        "LaunchRefused for good": LaunchRefused(incarnation, "no such program", retryable=False),
        "StartupPassed": StartupPassed(incarnation),
        "StartupLost": StartupLost(incarnation, "its loader died"),
        "ReadinessChanged to ready": ReadinessChanged(incarnation, is_ready=True),
        "ReadinessChanged to not ready": ReadinessChanged(incarnation, is_ready=False),
        "LivenessLost": LivenessLost(incarnation, "3 timeouts"),
        "Exited": Exited(incarnation, code=1),
        "Exited when asked": Exited(incarnation, signal=15, was_asked=True),
        "Exited with success": Exited(incarnation, code=0),
        "Exited not to be tried again": Exited(incarnation, code=3),
        "TimerFired startup": TimerFired(incarnation, "startup"),
        "TimerFired stable": TimerFired(incarnation, "stable"),
        "TimerFired backoff": TimerFired(incarnation, "backoff"),
        "TimerFired stop": TimerFired(incarnation, "stop"),
        "StopAsked": StopAsked("the run ends"),
        "StopAsked at once": StopAsked("the run ends", grace_s=1.0),
        "RestartAsked": RestartAsked(incarnation),
        "NodeLost": NodeLost(incarnation, "silent for 10 s"),
    }


def render_page() -> str:
    """Print the diagram, one table per phase, and what has no effect, as one markdown page."""
    replicas = build_replicas()
    tables = [_render_table(name, replica) for name, replica in replicas.items()]
    return "\n".join([_INTRO, _render_diagram(replicas), *tables, _render_variants()])


def _render_diagram(replicas: dict[str, Replica]) -> str:
    edges: dict[tuple[str, str], list[str]] = {}
    others = (
        build_replicas(Policy(has_readiness=False)),
        build_replicas(replace(_POLICY, has_readiness=False)),
        build_replicas(replace(_POLICY, is_movable=False)),
        build_replicas(replace(_POLICY, restart=RestartPolicy(limit=0))),
    )
    every = [replica for kinds in (replicas, *others) for replica in kinds.values()]
    for replica in (*every, *_build_never_launched(replicas)):
        for name, event in build_events(replica.incarnation).items():
            after = decide(replica, event, NOW_S).replica.phase
            names = edges.setdefault((replica.phase.value, after.value), [])
            kind = name.split(" ")[0]
            label = f"{kind} {name.split(' ')[1]}" if kind == "TimerFired" else kind
            if after is not replica.phase and label not in names:
                names.append(label)
    lines = [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in sorted(edges.items()) if names]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    [*] --> pending", *lines, "```", ""])


def _render_table(name: str, replica: Replica) -> str:
    rows, idle = [], []
    for event_name, event in build_events(replica.incarnation).items():
        decision = decide(replica, event, NOW_S)
        if decision.replica == replica and not decision.actions:
            idle.append(event_name)
            continue
        rows.append(_render_row(event_name, decision))
    head = [f"## {replica.phase.value}: {name}", "", "| event | then | actions | reason |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, "", f"No effect: {', '.join(idle) or 'none'}.", ""])


def _render_row(event_name: str, decision: Decision) -> str:
    actions = ", ".join(_render_action(action) for action in decision.actions) or "none"
    return f"| {event_name} | {decision.replica.phase.value} | {actions} | {decision.reason} |"


def _render_action(action: AnyAction) -> str:
    name = type(action).__name__
    return f"{name} {action.timer}" if isinstance(action, SetTimer | CancelTimer) else name


def _render_variants() -> str:
    """Print what another policy or a spent budget changes."""
    replicas = build_replicas()
    bare = build_replicas(Policy(has_readiness=False))
    cases = [
        ("budget spent", _build_spent(replicas), "Exited"),
        ("budget spent", _build_spent(replicas), "LaunchRefused"),
        ("no probes at all", bare["being launched"], "Started"),
        (
            "no readiness probe",
            build_replicas(replace(_POLICY, has_readiness=False))["waits for its startup probe"],
            "StartupPassed",
        ),
        *(("may not move", replica, "NodeLost") for replica in _build_unmovable(replicas)),
        *(("never launched", replica, "RestartAsked") for replica in _build_never_launched(replicas)),
    ]
    rows = []
    for what, replica, name in cases:
        decision = decide(replica, build_events(replica.incarnation)[name], NOW_S)
        rows.append(f"| {what} | {replica.phase.value} {_render_row(name, decision)}")
    head = [
        "## Other replicas",
        "",
        "| replica | phase | event | then | actions | reason |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])


def _build_spent(replicas: dict[str, Replica]) -> Replica:
    return replace(replicas["waits for its readiness probe"], failures=_POLICY.restart.limit)


def _build_never_launched(replicas: dict[str, Replica]) -> list[Replica]:
    return [replace(replicas[name], incarnation=0, failures=0, restarts=0) for name in ("as wanted", "given up")]


def _build_unmovable(replicas: dict[str, Replica]) -> list[Replica]:
    policy = replace(_POLICY, is_movable=False)
    names = ("waits for a node", "published", "for good", "for a restart", "waits for the next launch")
    return [replace(replicas[name], policy=policy) for name in names]


if __name__ == "__main__":
    print(render_page(), end="")
