"""Which ports to propose for the run's gateways. Pure."""

import hashlib

LOWEST = 20000
HIGHEST = 65000
TRIES = 20


def build_port_candidates(run_id: str, ephemeral: tuple[int, int]) -> tuple[int, ...]:
    """Pick ports outside the ephemeral range, the same ones for the same run id.

    Shape:  20 different ports, best first.
    Source: ip_local_port_range(5): a port inside it may be taken by any outgoing connection.
    """
    free = [*range(LOWEST, min(ephemeral[0], HIGHEST)), *range(max(ephemeral[1] + 1, LOWEST), HIGHEST)]
    if len(free) < TRIES:
        free = list(range(10000, LOWEST))
    ports: list[int] = []
    counter = 0
    while len(ports) < TRIES:
        digest = hashlib.sha256(f"{run_id}/{counter}".encode()).digest()
        port = free[int.from_bytes(digest[:8], "big") % len(free)]
        if port not in ports:
            ports.append(port)
        counter += 1
    return tuple(ports)
