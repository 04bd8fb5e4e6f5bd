"""One service of the manifest as what an agent starts and what `decide` must know.

Fills the placeholders the plan knows; {port} {host} {node_dir} stay for the node.
"""

from collections.abc import Mapping

from retinue.manifest.calls import Gateway
from retinue.manifest.schema import Egress, Probe, Service, parse_secret
from retinue.plan.expand import expand
from retinue.plan.records import Dependency, ServicePlan
from retinue.plan.records import Egress as EgressPlan
from retinue.plan.seats import NODE_KEEP
from retinue.terms.calls import CallRules
from retinue.terms.egress import EgressRule
from retinue.terms.launch import LaunchSpec, ProbeKind, ProbeSpec, StopSpec, compute_budget_s
from retinue.terms.record import Record
from retinue.terms.replica import Policy, RestartPolicy

IMPLIED_PERIOD_S = 1.0
"""Of the readiness probe a service gets without having written one: a bare connect costs nothing, and waiting ten
seconds for a server that listens after one would look like a fault."""


EXEMPT_KINDS = ("checks", "sandbox")
"""Their workloads have no network at all, so there is nothing to guard."""


class Site(Record, frozen=True):
    """What every launch of a run is built from."""

    start_dir: str
    """Where the command was given; relative directories start here."""
    attempt_dir: str
    mapping: dict[str, str]
    """Placeholders that are the same for every replica: {run_dir}, {train.nodelist}, {train.count}."""


def build_launch(name: str, service: Service, index: int, site: Site) -> LaunchSpec:
    """Build the launch of one replica with {node} still open.

    Shape:  incarnation 0; log_path keeps a literal `{n}` for the incarnation.
    Errors: PlaceholderError for a placeholder that nobody can fill.
    """
    keep = NODE_KEEP | {"node"}
    known = {**site.mapping, "service": name, "replica": f"{name}/{index}", "index": str(index)}
    secrets = {key: parse_secret(value) for key, value in service.env.items()}
    plain = {key: value for key, value in service.env.items() if secrets[key] is None}
    return LaunchSpec(
        replica=f"{name}/{index}",
        service=name,
        index=index,
        incarnation=0,
        argv=tuple(expand(word, known, keep) for word in service.command),
        env={key: expand(value, known, keep) for key, value in plain.items()},
        token_env=tuple(key for key, secret in secrets.items() if secret and secret[0] == "run"),
        secret_files={key: secret[1] for key, secret in secrets.items() if secret and secret[0] == "file"},
        cwd=_resolve_cwd(service.cwd, site.start_dir),
        wants_port=service.has_port,
        wants_inner_port=service.has_inner_port,
        port_reuse=service.port_reuse,
        listen=service.listen,
        probes=_build_probes(service, known, keep),
        stop=StopSpec(signal=service.stop.signal, grace_s=service.stop.grace_s),
        okay_delay_s=service.okay_delay_s,
        log_path=f"{site.attempt_dir}/logs/{name}.{index}/launch-{{n}}.log",
        keep_env=service.keep_env,
        egress=build_rule(service),
        shares_gpus=service.place.share_gpus,
    )


def build_policy(service: Service, launch: LaunchSpec, is_movable: bool) -> Policy:
    """Build what `decide` needs to know of each replica of a service.

    Units:  startup_budget_s counts from exec: the probe's budget, else initial delay + failures x period. Where the
            budget may go on, its limit: the agent says when it is over before.
    Source: the default is Kubernetes' startup probe.
    """
    budget_s = None
    for probe in launch.probes:
        if probe.kind is ProbeKind.STARTUP:
            budget_s = probe.budget_max_s or compute_budget_s(probe)
    restart = service.restart
    return Policy(
        restart=RestartPolicy(
            backoff_s=restart.backoff_s,
            backoff_max_s=restart.backoff_max_s,
            limit=restart.limit,
            stable_for_s=restart.stable_for_s,
            on_exhausted=restart.on_exhausted,
            success=service.success,
            no_restart=restart.no_restart,
        ),
        stop=launch.stop,
        startup_budget_s=budget_s,
        has_readiness=any(probe.kind is ProbeKind.READINESS for probe in launch.probes),
        is_movable=is_movable,
    )


def build_service(name: str, service: Service, replicas: tuple[str, ...], lane: int) -> ServicePlan:
    """Build the service's entry of the plan."""
    secrets = {key: parse_secret(value) for key, value in service.env.items()}
    return ServicePlan(
        name=name,
        kind=service.kind,
        replicas=replicas,
        min_ready=service.min_ready,
        has_port=service.has_port,
        is_http=service.protocol == "http",
        is_per_node=service.per_node is not None,
        depends_on=tuple(
            Dependency(service=other, condition=edge.condition, is_required=edge.required, wants_restart=edge.restart)
            for other, edge in service.depends_on.items()
        ),
        on_exhausted=service.restart.on_exhausted,
        egress=build_egress(service.egress),
        guard="exempt" if service.kind in EXEMPT_KINDS else "off" if service.egress is None else "on",
        calls=build_calls(service.gateway),
        wants_token=any(secret and secret[0] == "run" for secret in secrets.values()),
        env_secrets=tuple((key, secret[1]) for key, secret in secrets.items() if secret and secret[0] == "env"),
        start_lane=lane,
    )


def build_calls(words: Gateway) -> CallRules:
    """Turn the manifest's words about a service's callers into the plan's."""
    return CallRules(
        concurrency=words.concurrency or 0,
        queue=words.queue,
        memory_bytes=words.memory_bytes,
        affinity=words.affinity,
        connect_timeout_s=words.connect_timeout_s,
        read_timeout_s=words.read_timeout_s,
        unavailable_status=words.unavailable_status,
    )


def build_egress(rule: Egress | None) -> EgressPlan:
    """Turn the manifest's rule into the plan's; None is `off`."""
    return EgressPlan(is_on=False) if rule is None else EgressPlan(udp=rule.udp, allow=rule.allow)


def build_rule(service: Service) -> EgressRule | None:
    """Say how a node guards it; None: `off`, or its workloads have no network at all."""
    rule = service.egress
    return None if rule is None or service.kind in EXEMPT_KINDS else EgressRule(udp=rule.udp, allow=rule.allow)


def _build_probes(service: Service, known: Mapping[str, str], keep: frozenset[str]) -> tuple[ProbeSpec, ...]:
    present = service.probes.present()
    if not present and service.has_port:
        return (ProbeSpec(kind=ProbeKind.READINESS, tcp=True, period_s=IMPLIED_PERIOD_S),)
    return tuple(_build_probe(ProbeKind(name), probe, known, keep) for name, probe in present)


def _build_probe(kind: ProbeKind, probe: Probe, known: Mapping[str, str], keep: frozenset[str]) -> ProbeSpec:
    port = probe.http.port if probe.http is not None else None
    # `tcp: true` is the replica's own port; True is an int, too.
    if probe.tcp is not None and probe.tcp is not True:
        port = int(probe.tcp)
    return ProbeSpec(
        kind=kind,
        http_path=probe.http.path if probe.http is not None else None,
        tcp=probe.tcp is not None,
        progress=probe.progress or "",
        stall_s=probe.stall_s,
        exec_argv=tuple(expand(word, known, keep) for word in probe.exec or ()),
        port=port,
        period_s=probe.period_s,
        timeout_s=probe.timeout_s,
        failures=probe.failures,
        successes=probe.successes if kind is ProbeKind.READINESS else 1,
        initial_delay_s=probe.initial_delay_s,
        budget_s=probe.budget_s if kind is ProbeKind.STARTUP else None,
        budget_max_s=probe.budget_max_s if kind is ProbeKind.STARTUP else None,
    )


def _resolve_cwd(cwd: str | None, start_dir: str) -> str | None:
    """Take a relative directory from where the run was started."""
    if cwd is None or cwd.startswith("/"):
        return cwd
    return f"{start_dir.rstrip('/')}/{cwd}"
