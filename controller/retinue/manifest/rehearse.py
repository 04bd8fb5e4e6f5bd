"""A manifest with every service replaced by the scripted engine: same names, counts, order and rules, no GPUs. Pure.

What stays is what a rehearsal is to try: replicas, dependencies, restarts, stops, what is waited for. What goes
is what only the real thing has: commands, secrets, devices, memory.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from retinue.errors import UsageError
from retinue.manifest.schema import Manifest
from retinue.manifest.service import HttpCheck, Place, Probe, Probes, Service


def rehearse_manifest(
    manifest: Manifest, faults: Mapping[str, Sequence[str]], kept: Collection[str], *, is_flat: bool
) -> Manifest:
    """Replace every service but the kept ones.

    Shape:  `faults`: service -> words of the engine; `is_flat`: one group of nodes, for a machine that is alone.
    Errors: UsageError names a service that is not in the manifest.
    """
    for name in (*faults, *kept):
        if name not in manifest.services:
            raise UsageError(f"no service is called {name!r}; there are {', '.join(manifest.services)}")
    completed = {
        other
        for service in manifest.services.values()
        for other, edge in service.depends_on.items()
        if edge.condition == "completed"
    }
    services = {
        name: service if name in kept else _rehearse(service, faults.get(name, ()), name in completed)
        for name, service in manifest.services.items()
    }
    run = manifest.run.model_copy(update={"name": f"{manifest.run.name}-rehearsal"[:64], "requeue": None})
    changes: dict[str, Any] = {"services": services, "run": run}
    if is_flat:
        changes["services"] = {name: _flatten(service) for name, service in services.items()}
        changes |= {"nodes": {}, "trainer": manifest.trainer.model_copy(update={"on": None})}
    return manifest.model_copy(update=changes)


def _rehearse(service: Service, faults: Sequence[str], completes: bool) -> Service:
    command = ["{python}", "-P", "-m", "retinue.rehearsal"]
    if service.has_port:
        command += ["--host", "{host}", "--port", "{port}"]
    if completes:
        command.append("--exit-after-load")
    if faults:
        command += ["--fault", *faults]
    return service.model_copy(
        update={
            "command": tuple(command),
            "env": {},
            "cwd": None,
            "keep_env": (),
            "probes": _rehearse_probes(service),
            "place": service.place.model_copy(update={"gpus": 0, "cpus": None, "memory_bytes": None}),
            "port_reuse": True,
        }
    )


def _rehearse_probes(service: Service) -> Probes:
    """Ask the scripted engine what the real service would be asked, as far as it has such a thing."""
    if not service.has_port:
        return Probes()
    return Probes().model_copy(update={name: _ask_health(probe) for name, probe in service.probes.present()})


def _ask_health(probe: Probe) -> Probe:
    if probe.progress is not None:
        return probe
    return probe.model_copy(update={"http": HttpCheck(path="/health"), "tcp": None, "exec": None})


def _flatten(service: Service) -> Service:
    per_node = "all" if service.per_node is not None else None
    place = Place(strategy=service.place.strategy)
    return service.model_copy(update={"per_node": per_node, "place": place})
