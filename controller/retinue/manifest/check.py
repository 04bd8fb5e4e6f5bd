"""What a manifest says against itself: names, references, cycles, and keys that exclude each other.

Runs on what typed well, and takes the names of services and groups from the document
as written, so that a part with a mistake does not make others look wrong.
"""

import re
from collections.abc import Iterator

from retinue.errors import Finding
from retinue.manifest.check_service import check_service
from retinue.manifest.compose import Path, Tree
from retinue.manifest.schema import ALL_NODES, Manifest
from retinue.manifest.shape import nearest

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}", re.ASCII)
_NAME_HINT = "a name is a-z, 0-9 and '-', begins with a letter, and has at most 40 characters"

RESERVED_ENV = (
    "RETINUE_RUN_ID",
    "RETINUE_RUN_DIR",
    "RETINUE_NODE_DIR",
    "RETINUE_ENDPOINTS",
    "RETINUE_TOKEN_FILE",
    "RETINUE_ATTEMPT",
    "RETINUE_DEADLINE_EPOCH",
    "RETINUE_NODELIST",
    "RETINUE_NNODES",
    "RETINUE_PORT_FILE",
    "RETINUE_REPLICA",
)
"""Variables the run itself sets."""


def env_key(name: str) -> str:
    """The part of a variable's name that stands for a service or group: `user-sim` is `USER_SIM`."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def names_of(tree: Tree, section: str) -> list[str]:
    """The names a section has in the document, whether or not their entries are right."""
    entries = tree.data.get(section)
    return list(entries) if isinstance(entries, dict) else []


def check_whole(manifest: Manifest, tree: Tree) -> list[Finding]:
    """Look at everything that more than one field decides."""
    services, groups = names_of(tree, "services"), [ALL_NODES, *names_of(tree, "nodes")]
    findings = [*_check_names(services, groups, tree), *_check_variables(services, groups, tree)]
    findings += _check_groups(manifest, tree, groups)
    findings += _check_requeue(manifest, tree)
    findings += _check_trainer(manifest, tree)
    for name, service in manifest.services.items():
        at: Path = ("services", name)
        findings += check_service(service, tree, at, groups)
        for field, group in (("per_node", service.per_node), ("place", service.place.on)):
            path = (*at, field, "on") if field == "place" else (*at, field)
            findings += _check_group(tree, path, group, groups)
        findings += _check_dependencies(manifest, tree, name, services)
    return findings + _check_cycles(manifest, tree)


def _check_requeue(manifest: Manifest, tree: Tree) -> Iterator[Finding]:
    requeue = manifest.run.requeue
    if requeue is None:
        return
    if not requeue.on:
        yield tree.found(("run", "requeue", "on"), "is empty", "name at least one, or remove run.requeue")
    for at, end in enumerate(requeue.on):
        if end in requeue.on[:at]:
            yield tree.found(("run", "requeue", "on", at), f"names '{end}' twice", "remove one of them")
    if "timeout" in requeue.on and manifest.run.drain_s <= 0:
        what = "'timeout' needs time to ask for another attempt, and run.drain is 0s"
        yield tree.found(("run", "requeue", "on"), what, "set run.drain to what a stop takes, '120s'")


def _check_trainer(manifest: Manifest, tree: Tree) -> Iterator[Finding]:
    if manifest.trainer.egress is not None:
        what = "is not built: the trainer's processes are started by Slurm or by your shell, where no guard of ours is"
        yield tree.found(("trainer", "egress"), what, "remove it, or write 'egress: off'", at_key=True)


def _check_names(services: list[str], groups: list[str], tree: Tree) -> Iterator[Finding]:
    for section, names in (("services", services), ("nodes", groups[1:])):
        for name in names:
            if not _NAME.fullmatch(name):
                what = f"{name!r} is not a {'service' if section == 'services' else 'group'}'s name"
                yield tree.found((section, name), what, _NAME_HINT, at_key=True)
    if ALL_NODES in groups[1:]:
        what = f"the group '{ALL_NODES}' cannot be defined"
        yield tree.found(("nodes", ALL_NODES), what, "it always names every node", at_key=True)


def _check_variables(services: list[str], groups: list[str], tree: Tree) -> Iterator[Finding]:
    """Two names that make one variable: `RETINUE_<SERVICE>_URL`, `RETINUE_NODELIST_<GROUP>`, and what the run sets."""
    owners: dict[str, str] = dict.fromkeys(RESERVED_ENV, "the run itself")
    named = [(("services", name), f"service '{name}'", [f"RETINUE_{env_key(name)}_URL"]) for name in services]
    for group in groups[1:]:
        variables = [f"RETINUE_{what}_{env_key(group)}" for what in ("NODELIST", "NNODES")]
        named.append((("nodes", group), f"group '{group}'", variables))
    for path, owner, variables in named:
        taken = next((name for name in variables if name in owners), None)
        if taken is not None:
            what = f"{taken} is already the variable of {owners[taken]}"
            yield tree.found(path, what, "choose another name", at_key=True)
        owners |= {name: owner for name in variables if name not in owners}


def _check_groups(manifest: Manifest, tree: Tree, groups: list[str]) -> list[Finding]:
    findings = _check_group(tree, ("trainer", "on"), manifest.trainer.on, groups)
    rest = [name for name, group in manifest.nodes.items() if group.count == "rest"]
    for name in rest[1:]:
        what = f"group '{rest[0]}' already takes the rest"
        findings.append(tree.found(("nodes", name, "count"), what, "give one of them a number"))
    return findings


def _check_group(tree: Tree, path: Path, group: str | None, groups: list[str]) -> list[Finding]:
    if group is None or group in groups:
        return []
    return [tree.found(path, f"there is no group '{group}'", nearest(group, groups))]


def _check_dependencies(manifest: Manifest, tree: Tree, name: str, services: list[str]) -> Iterator[Finding]:
    for wanted, dependency in manifest.services[name].depends_on.items():
        path: Path = ("services", name, "depends_on", wanted)
        if wanted not in services:
            others = [other for other in services if other != name]
            yield tree.found(path, f"there is no service '{wanted}'", nearest(wanted, others), at_key=True)
            continue
        target = manifest.services.get(wanted)
        if target is not None and dependency.condition == "completed" and not target.success:
            what = f"'{wanted}' never completes: it has a port, so no exit code means done"
            if target.restart.success == ():
                what = f"'{wanted}' never completes: its restart.success is empty"
            yield tree.found(path, what, f"set services.{wanted}.restart.success, or wait for 'ready'")


def _check_cycles(manifest: Manifest, tree: Tree) -> list[Finding]:
    """Find each cycle once, shown from the service that is written first."""
    findings: list[Finding] = []
    order = list(manifest.services)
    settled: set[str] = set()
    for first in order:
        trail = _find_cycle(manifest, first, settled)
        if trail is not None:
            path: Path = ("services", first, "depends_on", trail[1])
            shown = " -> ".join(trail)
            findings.append(tree.found(path, f"waits for itself: {shown}", "remove one of them", at_key=True))
        settled.add(first)
    return findings


def _find_cycle(manifest: Manifest, first: str, settled: set[str]) -> list[str] | None:
    """The shortest way from a service back to itself; breadth first, no recursion."""
    trails = [[first]]
    seen: set[str] = set()
    while trails:
        trail = trails.pop(0)
        service = manifest.services.get(trail[-1])
        for wanted in service.depends_on if service is not None else ():
            if wanted == first:
                return [*trail, first]
            if wanted not in seen and wanted not in settled:
                seen.add(wanted)
                trails.append([*trail, wanted])
    return None
