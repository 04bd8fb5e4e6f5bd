"""The manifest as resolved, as YAML that loads to an equal `Manifest`.

Templates are expanded and secrets are still references: nothing here could leak a value,
because loading never looked one up.
"""

from retinue.manifest.compose import dump_yaml
from retinue.manifest.schema import Manifest

_HEADER = "# The manifest as resolved: templates expanded, secrets still references.\n"


def dump_manifest(manifest: Manifest) -> str:
    """Write a loaded manifest out: what differs from the defaults, in the order of the reference."""
    return _HEADER + dump_yaml(manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True))
