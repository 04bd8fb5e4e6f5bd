"""The manifest as resolved, as YAML that loads to an equal `Manifest`.

Templates are expanded and secrets are still references: nothing here could leak a value,
because loading never looked one up.
"""

from typing import Any

import yaml

from retinue.manifest.schema import Manifest


class _Dumper(yaml.SafeDumper):
    """Indents lists below their key, and never writes anchors: a resolved manifest is read by people."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def dump_manifest(manifest: Manifest) -> str:
    """Write a loaded manifest out: what differs from the defaults, in the order of the reference."""
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return "# The manifest as resolved: templates expanded, secrets still references.\n" + text
