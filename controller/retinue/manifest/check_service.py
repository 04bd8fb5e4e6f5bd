"""One service against itself: placeholders, probes, counts, environment, egress."""

import ipaddress
import re
from collections.abc import Iterator

from retinue.errors import Finding
from retinue.manifest.calls import Gateway
from retinue.manifest.check_egress import check_urls
from retinue.manifest.compose import Path, Tree
from retinue.manifest.scalars import quote
from retinue.manifest.schema import Probe, Service, parse_secret
from retinue.manifest.shape import nearest
from retinue.manifest.shorthand import find_placeholders

PLACEHOLDERS = ("port", "host", "node", "service", "replica", "index", "node_dir", "run_dir", "python", "inner_port")
"""What `{…}` may name in commands, environments and exec probes, beside `{<group>.nodelist}` and `{<group>.count}`."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


_ASKED = ("http", "tcp", "exec", "progress")
"""What a probe may ask; the last one only for liveness."""


def check_service(service: Service, tree: Tree, at: Path, groups: list[str]) -> Iterator[Finding]:
    """Look at everything that only this service decides."""
    yield from _check_command(service, tree, at)
    yield from _check_counts(service, tree, at)
    yield from _check_restart(service, tree, at)
    for name, probe in service.probes.present():
        yield from _check_probe(probe, tree, (*at, "probes", name))
    yield from _check_env(service, tree, at)
    yield from _check_egress(service, tree, at)
    if service.protocol == "tcp" and service.gateway != Gateway():
        yield tree.found((*at, "gateway"), "means nothing for 'protocol: tcp', which has no URL", "leave it out")
    known = [*PLACEHOLDERS, *(f"{group}.{what}" for group in groups for what in ("nodelist", "count"))]
    texts = list(_texts(service, at))
    yield from check_urls(service, tree, texts)
    for path, text in texts:
        yield from _check_placeholders(tree, path, text, known)


def _check_command(service: Service, tree: Tree, at: Path) -> Iterator[Finding]:
    path = (*at, "command")
    if path in tree.keys and not service.command and tree.data["services"][at[1]].get("command") == []:
        yield tree.found(path, "is an empty list", "name the program and its arguments")
    elif service.command and not service.command[0].strip():
        yield tree.found((*path, 0), "the program's name is empty")


def _check_counts(service: Service, tree: Tree, at: Path) -> Iterator[Finding]:
    if service.per_node is None:
        if service.min_ready > service.replicas:
            what = f"must be at most {service.replicas}, the number of replicas, not {service.min_ready}"
            yield tree.found((*at, "min_ready"), what, "lower it, or raise replicas")
        return
    if "replicas" in service.model_fields_set:
        what = f"not together with per_node: there is one replica on each node of '{service.per_node}'"
        yield tree.found((*at, "replicas"), what, "remove one of them", at_key=True)
    if service.place.on not in (None, service.per_node):
        by_template = " of the template" if tree.place((*at, "per_node")).source else ""
        what = f"not together with the per_node{by_template}, which says one on each node of '{service.per_node}'"
        hint = f"write 'per_node: {service.place.on}' instead, for one on each node of '{service.place.on}'"
        yield tree.found((*at, "place", "on"), what, hint, at_key=True)


def _check_restart(service: Service, tree: Tree, at: Path) -> Iterator[Finding]:
    restart = service.restart
    if restart.backoff_max_s < restart.backoff_s:
        key = "backoff_max" if "backoff_max_s" in restart.model_fields_set else "backoff"
        what = f"backoff_max ({restart.backoff_max_s:g} s) is shorter than backoff ({restart.backoff_s:g} s)"
        yield tree.found((*at, "restart", key), what)
    both = sorted(set(restart.success or ()) & set(restart.no_restart))
    if both:
        what = f"exit code {both[0]} is in success and in no_restart"
        yield tree.found((*at, "restart", "success"), what, "keep it in one of them; no_restart is [3] when left out")


def _check_probe(probe: Probe, tree: Tree, at: Path) -> Iterator[Finding]:
    kinds = [kind for kind in _ASKED if getattr(probe, kind) is not None]
    # A kind that was written but did not type already has its finding.
    written = [kind for kind in _ASKED if (*at, kind) in tree.keys]
    one_of = f"write exactly one of {', '.join(_ASKED if at[-1] == 'liveness' else _ASKED[:-1])}"
    if not kinds and not written:
        yield tree.found(at, "asks nothing", one_of, at_key=True)
    if len(kinds) > 1:
        yield tree.found((*at, kinds[1]), f"has {' and '.join(kinds)}", one_of, at_key=True)
    if probe.exec == ():
        yield tree.found((*at, "exec"), "is an empty list", "name the program and its arguments")
    yield from _check_budget(probe, tree, at)
    if at[-1] != "readiness" and probe.successes != 1:
        what = f"must be 1 for {at[-1]}, not {probe.successes}"
        yield tree.found((*at, "successes"), what, "as in Kubernetes; remove it")


def _check_budget(probe: Probe, tree: Tree, at: Path) -> Iterator[Finding]:
    """What only one kind of probe has: startup its budgets, liveness its progress."""
    is_startup, budget_s = at[-1] == "startup", probe.budget_s or probe.failures * probe.period_s
    for key in ("budget", "budget_max"):
        if not is_startup and getattr(probe, f"{key}_s") is not None:
            yield tree.found((*at, key), "only a startup probe has a budget", "remove it", at_key=True)
    if is_startup and probe.budget_max_s is not None and probe.budget_max_s < budget_s:
        what = f"budget_max ({probe.budget_max_s:g} s) is shorter than the budget itself"
        yield tree.found((*at, "budget_max"), what, "it is how far the budget may go on")
    if at[-1] != "liveness" and probe.progress is not None:
        what = f"only a liveness probe may ask for progress, not {at[-1]}"
        yield tree.found((*at, "progress"), what, "ask http: /health there", at_key=True)
    if probe.progress is None and "stall_s" in probe.model_fields_set:
        yield tree.found((*at, "stall"), "'stall' has a meaning only beside 'progress'", "remove it", at_key=True)


def _check_env(service: Service, tree: Tree, at: Path) -> Iterator[Finding]:
    for name, value in service.env.items():
        path = (*at, "env", name)
        if not _ENV_NAME.fullmatch(name):
            yield tree.found(path, f"{quote(name)} is not a variable's name", at_key=True)
        elif name.startswith("RETINUE_"):
            yield tree.found(path, "RETINUE_* is set by the run", "choose another name", at_key=True)
        kind, where = parse_secret(value) or ("", "")
        if kind == "env" and not _ENV_NAME.fullmatch(where):
            yield tree.found(path, f"{quote(value)} names no variable", "write 'env:NAME'")
        if kind == "run" and where != "token":
            yield tree.found(path, f"{quote(value)} is nothing that the run has", "write 'run:token'")
        if kind == "file" and not where.startswith("/"):
            yield tree.found(path, f"{quote(value)} is not an absolute path", "write 'file:/path/to/secret'")


def _check_egress(service: Service, tree: Tree, at: Path) -> Iterator[Finding]:
    for index, rule in enumerate(service.egress.allow if service.egress is not None else ()):
        if not is_egress_rule(rule):
            what = f"{quote(rule)} is not CIDR, CIDR:PORT or HOST:PORT"
            yield tree.found((*at, "egress", "allow", index), what, "write it like '10.0.0.0/8:443'")


def is_egress_rule(rule: str) -> bool:
    """Say whether a text is `CIDR`, `CIDR:PORT`, `[CIDR6]:PORT` or `HOST:PORT`."""
    if _is_network(rule):
        return True
    where, colon, port = rule.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        return False
    if where.startswith("[") and where.endswith("]"):
        return _is_network(where[1:-1])
    if ":" in where:
        return False
    looks_like_address = re.fullmatch(r"[\d./]+", where) is not None
    return _is_network(where) if looks_like_address else _HOST.fullmatch(where) is not None


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _texts(service: Service, at: Path) -> Iterator[tuple[Path, str]]:
    """Every text in which placeholders are expanded."""
    for index, word in enumerate(service.command):
        yield (*at, "command", index), word
    for name, value in service.env.items():
        if parse_secret(value) is None:
            yield (*at, "env", name), value
    for name, probe in service.probes.present():
        for index, word in enumerate(probe.exec or ()):
            yield (*at, "probes", name, "exec", index), word


def _check_placeholders(tree: Tree, path: Path, text: str, known: list[str]) -> Iterator[Finding]:
    for name, written in find_placeholders(text):
        if name in known:
            continue
        if name is None:
            yield tree.found(path, f"a '{written}' alone in {quote(text)}", f"write '{written * 2}' for the character")
            return
        hint = nearest(name, known) if re.fullmatch(r"[\w.-]*", name) else ""
        hint = hint.replace("did you mean '", "did you mean '{").replace("'?", "}'?")
        hint = hint if hint.startswith("did you mean") else "write '{{' and '}}' for the characters"
        yield tree.found(path, f"unknown placeholder {quote(written)}", hint)
