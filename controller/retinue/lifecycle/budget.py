"""How long to wait before the next launch, and when there is none.

Failures are counted since the last stable period, never in a window of wall time:
a server that needs four minutes to crash must still spend its budget.
"""

import hashlib

from retinue.terms.replica import RestartPolicy

_DOUBLINGS = 62
"""More doublings than any cap needs; 2.0 ** failures would overflow for a huge limit."""


def compute_backoff_s(policy: RestartPolicy, failures: int) -> float:
    """Compute the wait after this many failures, without jitter.

    Shape:  failures >= 1; doubles with each, capped at backoff_max_s.
    Source: kubelet's CrashLoopBackOff, 10 s doubling to 300 s.
    """
    doublings = min(max(failures - 1, 0), _DOUBLINGS)
    return float(min(policy.backoff_s * 2.0**doublings, policy.backoff_max_s))


def compute_jitter(replica_id: str, incarnation: int) -> float:
    """Compute a number in [0, 1) that differs between replicas and launches, and never between runs."""
    digest = hashlib.blake2b(f"{replica_id}#{incarnation}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


def compute_wait_s(policy: RestartPolicy, failures: int, replica_id: str, incarnation: int) -> float:
    """Compute the wait after the failure of this incarnation, jitter included.

    Units: seconds; at most backoff_max_s x (1 + jitter).
    """
    return compute_backoff_s(policy, failures) * (1.0 + policy.jitter * compute_jitter(replica_id, incarnation))


def is_spent(policy: RestartPolicy, failures: int) -> bool:
    """Say whether this many failures are one more than the policy allows."""
    return failures > policy.limit
