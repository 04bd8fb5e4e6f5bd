"""Names in `egress.allow`, turned into addresses on the node where the service is launched.

Asked once for each launch: a guard that looked names up while a service waits could be made to wait itself.
"""

import socket

from retinue.egress.rules import parse_net, split_port
from retinue.errors import TransientError
from retinue.node.threads import Threads
from retinue.terms.egress import EgressRule
from retinue.terms.record import replace


async def resolve_rule(rule: EgressRule | None, threads: Threads) -> EgressRule | None:
    """Replace every name by all the addresses it has now.

    Errors: TransientError names the host that has none, or whose name service does not answer.
    """
    if rule is None or all(parse_net(entry) is not None for entry in rule.allow):
        return rule
    allow: list[str] = []
    for entry in rule.allow:
        allow += [entry] if parse_net(entry) is not None else await _resolve(entry, threads)
    return replace(rule, allow=tuple(dict.fromkeys(allow)))


async def _resolve(entry: str, threads: Threads) -> list[str]:
    host, port = split_port(entry)
    where = f"cannot find the address of {host!r} (egress.allow)"
    try:
        addresses = await threads.run(_look_up, host)
    except TransientError as error:
        raise TransientError(f"{where}: {error}") from None
    except OSError as error:
        raise TransientError(f"{where}: {error.strerror}") from None
    return [f"[{address}]:{port}" if ":" in address else f"{address}:{port}" for address in addresses]


def _look_up(host: str) -> list[str]:
    return [str(place[4][0]) for place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
