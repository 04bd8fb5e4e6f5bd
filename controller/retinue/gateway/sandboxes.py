"""Requests about one sandbox: which replica has it, and what is said when that cannot answer.

Pure. A sandbox lives and dies with its replica's process, so such a request is never held, never sent to another
replica, and never sent twice: whether that is safe is for the client to say.
"""

import re
from collections.abc import Mapping

from retinue.gateway.faults import Blame, Fault
from retinue.gateway.routes import Service, Slot
from retinue.gateway.wire import Refusal

SANDBOX_HEADER = "X-Retinue-Sandbox"
CREATES = "/v1/sandboxes"

_PATH = re.compile(r"/v1/sandboxes/([^/?#]+)")
_ID = re.compile(r"([A-Za-z0-9_.-]+)\.(\d{1,9})-[0-9a-f]{16}")


def find_sandbox(target: str, headers: Mapping[str, str]) -> str:
    """Find the sandbox that a request is about, by its path, else by its header; empty: none."""
    found = _PATH.match(target)
    return found[1] if found else headers.get(SANDBOX_HEADER, "")


def is_create(method: str, target: str) -> bool:
    """Tell whether a request makes a sandbox."""
    return method == "POST" and target.partition("?")[0] == CREATES


def parse_replica(sandbox: str) -> str:
    """`sandbox.3-0123456789abcdef` -> `sandbox/3`; empty when it is no id."""
    found = _ID.fullmatch(sandbox)
    return f"{found[1]}/{int(found[2])}" if found else ""


def find_host(service: Service, sandbox: str) -> Slot:
    """Find the replica that has a sandbox, whether or not it takes new ones.

    Errors: Refusal 404 for what is no id of this service, 410 when the replica is no more.
    """
    replica, name = parse_replica(sandbox), service.route.service
    if replica.partition("/")[0] != name:
        raise Refusal(404, "sandbox_unknown", f"cannot find sandbox {sandbox[:100]!r}: no id of {name!r}", name)
    slot = service.pinned.get(replica)
    if slot is not None:
        return slot
    for gone in service.route.gone:
        if gone.replica == replica:
            raise refuse_gone(name, sandbox, gone.node, gone.cause)
    raise refuse_gone(name, sandbox, "", f"{replica} is not among the replicas that this node's gateway is told of")


def refuse_gone(service: str, sandbox: str, node: str, cause: str) -> Refusal:
    """Say that a sandbox is lost with its replica."""
    where = f" of node {node}" if node else ""
    return Refusal.gone(service, f"cannot use sandbox {sandbox}{where}: it is lost: {cause}", node, cause)


def refuse_fault(service: str, sandbox: str, slot: Slot, fault: Fault) -> Refusal:
    """Say why a request about a sandbox has no answer: it is gone for certain, or the request may be made again."""
    backend = slot.backend
    if fault.blame is Blame.GONE:
        return refuse_gone(service, sandbox, backend.node, f"{backend.replica}: {fault}")
    return Refusal.bad_gateway(service, f"cannot get an answer of {backend.replica} on node {backend.node}: {fault}")
