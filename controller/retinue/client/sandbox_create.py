"""A sandbox as a caller asks for it. Pure."""

import uuid
from collections.abc import Mapping
from typing import Any, TypedDict

from retinue.client.question import check_seconds

LEASE_S = 900.0
"""How long a sandbox outlives its program, and how long this program's loop may stand still."""
ONCE = "once-"
"""How a key begins that is for sending one create again: gateways may place it where they like."""


class SandboxOptions(TypedDict, total=False):
    """What a sandbox is like; what is left out, or None, is the service's own."""

    limits: Mapping[str, int | float | str] | None
    """Of disk, inodes, memory, pids, cpu, wall, output, shm; as numbers, or "512MiB" and "90s"."""
    env: Mapping[str, str] | None
    user: str | int
    """`root`, or a number."""
    workdir: str
    """Where its commands start; made if it is missing."""
    hostname: str
    net: bool
    """127.0.0.1 of its own (the default); False: no sockets at all."""
    lease_s: float
    """How long it outlives this program; 900."""
    queue_s: float | None
    """How long it may wait for room."""
    key: str | None
    """The same key and contents give the same sandbox, whoever asks."""


def build_create(image: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Build the body of a create.

    Errors: TypeError, ValueError: the caller's program is wrong. What a limit may be is for the service to say.
    """
    unknown = sorted(set(options) - set(SandboxOptions.__annotations__))
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; there are {', '.join(SandboxOptions.__annotations__)}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("lease_s", "queue_s"):
        check_seconds(given.get(name), name)
    for name in ("limits", "env"):
        given[name] = dict(given.get(name, {}))
    key = given.get("key") or ONCE + uuid.uuid4().hex
    return {"lease_s": LEASE_S, **given, "image": image, "key": key}
