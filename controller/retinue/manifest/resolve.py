"""The manifest as resolved, as YAML that loads to an equal `Manifest`.

Templates are expanded and secrets are still references: nothing here could leak a value,
because loading never looked one up.
"""

from typing import Any

from retinue.manifest.compose import dump_yaml
from retinue.manifest.schema import Manifest
from retinue.manifest.service import Service

_HEADER = "# The manifest as resolved: templates expanded, secrets still references.\n"


def dump_manifest(manifest: Manifest) -> str:
    """Write a loaded manifest out: what differs from the defaults, in the order of the reference."""
    return _HEADER + dump_yaml(manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def describe_service(service: Service) -> dict[str, Any]:
    """One service as plain data, as a manifest would have it: for `plan` and `template show`."""
    return service.model_dump(mode="json", by_alias=True, exclude_defaults=True)
