"""How a retrieval service was told to run."""

from retinue.retrieval.records import Method
from retinue.terms.record import Record

TOP_K_MAX = 1000
QUERIES_MAX = 10_000
"""Of one request: a batch of rollouts asks in one."""
PASSAGES_MAX = 100_000
"""Of one answer, queries times top_k."""
QUERY_CHARS_MAX = 8192
"""What comes after is not read: a rollout may write anything."""


class Settings(Record, frozen=True):
    """Everything the host needs to know."""

    index: str
    """Directory."""
    method: Method | None = None
    """What a request that does not say gets; None: what the index has, both fused when it has both."""
    top_k: int = 3
    """Passages per query of a request that does not say."""
    workers: int = 1
    """Queries that are searched at once."""
    queue: int = 20_000
    """Queries that wait at most, all callers together."""
    queue_bytes: int = 256 * 2**20
    embedder: str = ""
    """Empty: the one the index was built with."""
    reranker: str = ""
    """`module:function`; empty: none."""
    service: str = "retrieval"
    node: str = ""
    incarnation: str = ""
    """`corpus/0#2`."""
