"""Text to `Manifest`: every finding in one report, or a manifest that can be planned. Pure.

Nothing here reads a file: templates come through a function the caller gives
(`files` has the one that reads directories).
"""

from collections.abc import Sequence
from typing import Any

from retinue.errors import Finding, ManifestError
from retinue.manifest.check import check_whole
from retinue.manifest.compose import Tree, compose_tree
from retinue.manifest.expand import expand_templates
from retinue.manifest.scalars import quote
from retinue.manifest.schema import Manifest
from retinue.manifest.shape import read_model
from retinue.manifest.template import FindTemplates, Shelf

MAX_FINDINGS = 200
"""A report longer than this helps nobody; the last line says how many more there are."""


def no_templates(directories: Sequence[str]) -> Shelf:
    """A shelf with nothing on it, for manifests that name no template."""
    return Shelf()


def load_manifest(text: str, file: str, find_templates: FindTemplates = no_templates) -> Manifest:
    """Read and check a whole manifest.

    Shape:  templates expanded (`template` None, `with_` empty), `restart.success` filled in.
    Errors: ManifestError with every finding.
    """
    manifest, findings = _load(text, find_templates)
    if findings or manifest is None:
        raise ManifestError(file, findings)
    return manifest


def check_manifest(text: str, find_templates: FindTemplates = no_templates) -> list[Finding]:
    """Find everything that is wrong with a manifest; empty when nothing is."""
    return _load(text, find_templates)[1]


def _load(text: str, find_templates: FindTemplates) -> tuple[Manifest | None, list[Finding]]:
    tree = compose_tree(text)
    if tree.data is None:
        return None, tree.findings
    findings = list(tree.findings)
    shelf = find_templates(_template_directories(tree))
    findings += _unreadable(tree, shelf)
    findings += expand_templates(tree, shelf)
    manifest, misfits = read_model(Manifest, tree)
    findings += misfits
    if manifest is not None:
        findings += check_whole(manifest, tree)
    # A group or key that several checks look at may be found twice with the same words.
    findings = sorted(set(findings))
    if len(findings) > MAX_FINDINGS:
        more = Finding(findings[-1].line, 0, "", f"{len(findings) - MAX_FINDINGS} more findings are not shown")
        findings = [*findings[:MAX_FINDINGS], more]
    if findings or manifest is None:
        return None, findings
    return _settle(manifest), []


def _template_directories(tree: Tree) -> list[str]:
    asked: Any = tree.data.get("templates", [])
    return [item for item in asked if isinstance(item, str)] if isinstance(asked, list) else []


def _unreadable(tree: Tree, shelf: Shelf) -> list[Finding]:
    return [
        tree.found(("templates", directory), f"cannot read {quote(directory)}: {why}", at_key=True)
        for directory, why in shelf.unreadable.items()
    ]


def _settle(manifest: Manifest) -> Manifest:
    """Write the default of `restart.success` down, and forget where the expanded templates came from."""
    services = {}
    for name, service in manifest.services.items():
        restart = service.restart.model_copy(update={"success": service.success})
        services[name] = service.model_copy(update={"restart": restart})
    return manifest.model_copy(update={"services": services, "templates": ()})
