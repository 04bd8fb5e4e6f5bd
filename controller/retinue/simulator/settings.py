"""How a user simulator was told to run."""

from retinue.terms.record import Record

STOP, TRANSFER, OUT_OF_SCOPE = "###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###"
"""What ends a conversation. Source: tau2-bench's user simulator."""
ENDS = {STOP: "stop", TRANSFER: "transfer", OUT_OF_SCOPE: "out_of_scope"}
TURN_LIMIT = "turn_limit"
BODY_BYTES_MAX = 16 * 2**20


class Settings(Record, frozen=True):
    """Everything the simulator needs to know but its personas."""

    model: str = ""
    """Name of the model at its service; empty: the first that the service names."""
    turns: int = 30
    """Messages of the user, at most, of a persona that does not say."""
    max_tokens: int = 512
    """Of one message of the user."""
    temperature: float = 0.7
    """Of a request that does not say."""
    attempts: int = 3
    """Messages the model may try before it has failed."""
    message_chars: int = 8_000
    """Of one message of the policy that the model reads; the middle is left out of a longer one."""
    history_chars: int = 48_000
    """Of the whole conversation that the model reads; the middle is left out of a longer one."""
    answer_s: float = 120.0
    """For one message, all attempts together; `run.hold` comes on top."""
    workers: int = 64
    """Messages that are under way at once."""
    queue: int = 10_000
    """Requests that wait at most, all callers together."""
    queue_bytes: int = 256 * 2**20
    service: str = "simulator"
    node: str = ""
